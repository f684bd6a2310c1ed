"""One view a command."""
