"""What single kernels allocate on a real GPU: rules read off recorded allocations."""
