"""eBPF: what this host allows, probe tables, programs, loader, readers."""
