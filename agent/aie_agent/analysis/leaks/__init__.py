"""Memory leaks: rising block floors of what is allocated, of what the allocator holds beyond that, and of what it does not know."""
