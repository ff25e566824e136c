/* The module that owns the maps which modules share. */
#ifndef WATCHED_ENTRIES
#define WATCHED_ENTRIES 1024
#endif
BPF_TABLE_PUBLIC("hash", u32, struct watched, watched, WATCHED_ENTRIES);
/* Threads that are inside a CUDA synchronisation now, put in by cuda_sync: their sleep is the GPU's doing. */
BPF_TABLE_PUBLIC("hash", u32, u64, in_sync, 16384);
