"""Figures derived from records: pure functions."""
