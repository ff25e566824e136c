"""Python stacks of engines: taken on suspicion only, by reading memory, so that nothing is ever stopped for them."""
