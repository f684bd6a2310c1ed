"""What we run: a model, its data, and the step between them."""
