"""What to set: `stoker tune`."""
