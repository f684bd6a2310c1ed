"""The table of each command, one file a command."""
