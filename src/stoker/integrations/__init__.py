"""Stoker inside other programs: scripts, training frameworks, notebooks, the Python prompt."""
