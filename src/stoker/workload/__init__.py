"""The workload: a model, its data, and the step."""
