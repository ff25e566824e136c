"""The host agent: sources -> store -> analysis -> outputs."""
