"""Data sets: folders, images, tensors, text, video, synthetic."""
