/* The module that owns the maps which modules share. */
BPF_TABLE_PUBLIC("hash", u32, struct watched, watched, 1024);
/* Threads that are inside a CUDA synchronisation now, put in by cuda_sync: their sleep is the GPU's doing. */
BPF_TABLE_PUBLIC("hash", u32, u64, in_sync, 16384);
