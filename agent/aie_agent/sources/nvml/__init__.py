"""NVIDIA GPUs through NVML: one door (`door.py`), a table of what is asked (`rows.py`), a source that asks it (`source.py`)."""
