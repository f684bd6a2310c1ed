"""Looks into loader workers: wrappers that can be removed again."""
