"""The tables of the screen: engines, memory, hosts."""
