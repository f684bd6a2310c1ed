"""The largest batch that fits: `stoker limit`."""
