"""Native stacks of threads that wait, from registers and a copy of the stack's top: which code waits, and who called it."""
