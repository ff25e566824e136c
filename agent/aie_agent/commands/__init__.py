"""One module a sub-command of `aie-agent`."""
