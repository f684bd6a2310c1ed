"""Shows records: tables for the terminal, JSON documents for programs, progress on stderr."""
