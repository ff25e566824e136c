"""Drift: whether what a model is asked and what it answers still looks as it did when its reference was recorded."""
