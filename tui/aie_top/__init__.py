"""`aie-top`: the terminal UI. Talks to the agent's HTTP API and to nothing else."""
