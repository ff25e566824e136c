/* A module that uses the maps of the one above. */
BPF_TABLE("extern", u32, struct watched, watched, 1024);
BPF_TABLE("extern", u32, u64, in_sync, 16384);
