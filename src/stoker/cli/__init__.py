"""The command line: one file a command, named like it. Each parses, calls and shows; nothing else."""
