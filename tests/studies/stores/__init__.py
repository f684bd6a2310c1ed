"""A database of every schema that there has been: each must open, now and later."""
