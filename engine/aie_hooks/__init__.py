"""Instrumentation for any PyTorch engine. Importing this imports neither torch nor anything of an engine."""
