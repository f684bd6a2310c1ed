"""Follows a training step on a fake GPU and logs every allocation."""
