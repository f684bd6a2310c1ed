"""The command line: one file a command. Each parses its options, calls the library and shows the answer."""
