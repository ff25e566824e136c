"""What the kernel shows of engines through eBPF: a child process holds BCC and the probes; this package watches over it."""
