"""Causes that lie in the host: its CPUs, its memory, its disks."""
