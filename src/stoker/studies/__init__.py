"""Many runs: `stoker study`. Grids, a store that survives kills, drivers that share it."""
