"""Causes that are an engine's own: a file a concern. What they read of the store is in `readings`."""
