"""What would happen: computed from records, nothing is run."""
