"""Causes that lie in GPUs: from what the driver says of each, and who is on it."""
