"""What happened: trials of real loops, in processes of their own."""
