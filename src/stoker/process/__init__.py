"""A call in a process of its own."""
