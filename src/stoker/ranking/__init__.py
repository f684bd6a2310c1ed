"""Model search: scores of pretrained models on a labelled set, static baselines, and their combined ranking."""
