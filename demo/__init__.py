"""`make demo`: a real model under a real workload, watched by the agent and shown by `aie-top`."""
