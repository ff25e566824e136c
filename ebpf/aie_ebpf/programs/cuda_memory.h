/* SPDX-License-Identifier: Apache-2.0
 *
 * What cuda_memory keeps, and its maps.
 */
enum kind { KIND_DEVICE, KIND_MANAGED, KIND_ASYNC, KIND_VMM, KIND_HOST, KIND_REGISTERED };
/* What may be freed by the same function. */
enum space { SPACE_DEVICE, SPACE_VMM, SPACE_HOST, SPACE_REGISTERED };
enum action { ALLOCATES, ALLOCATES_PITCH, REGISTERS, FREES, CREATES_CONTEXT, DESTROYS_CONTEXT, RETAINS_PRIMARY, RELEASES_PRIMARY, RESETS_PRIMARY };

struct place { /* a pointer, or a handle of cuMemCreate */
    u64 pointer;
    u32 tgid;
    u32 space;
};
struct allocation {
    u64 size;
    u64 caller;
    u32 kind;
    u32 generation;
};
struct group {
    u64 caller;
    u32 tgid;
    u32 generation;
    u32 kind;
    u32 size_class; /* the smallest n with size <= 2^n */
};
struct group_use {
    u64 outstanding_bytes;
    u64 outstanding;
    u64 allocated_bytes;
    u64 allocations;
    u64 freed_bytes;
    u64 frees;
};
struct context {
    u64 id; /* a CUcontext, or the device of a primary one */
    u32 tgid;
    u32 is_primary;
};
struct cuda_process {
    u64 unknown_frees;
    u64 contexts;
    u32 generation;
    u32 seen_from_start; /* set by user space */
};
struct memory_call {
    struct frame frame;
    u64 caller;      /* of the outermost function, CUDA's runtime included */
    u64 pointer;     /* where the result is stored, or what is freed */
    u64 size;        /* or the height, times the pitch that is read on return */
    u64 pitch_at;
    struct allocation taken; /* of a free */
    u32 tgid;
    u32 call;
    u32 action;
    u32 kind;
    u32 space;
    u32 zero;
};
struct runtime_call {
    u64 sp;
    u64 caller;
    u64 function;
};

/* 262144 allocations of 40 bytes, made as they are needed: a caching allocator has hundreds, and room for one that leaks small
 * pieces must not cost 25 MB from the start. Read as a whole only when a process or its last context ends.
 */
#ifndef LIVE_ENTRIES
#define LIVE_ENTRIES 262144
#endif
BPF_F_TABLE("hash", struct place, struct allocation, live, LIVE_ENTRIES, BPF_F_NO_PREALLOC);
/* Read each second. A caching allocator asks from a handful of places; 4096 is some hundred engines' worth. */
#ifndef GROUPS_ENTRIES
#define GROUPS_ENTRIES 4096
#endif
BPF_TABLE("hash", struct group, struct group_use, groups, GROUPS_ENTRIES);
BPF_TABLE("hash", struct context, u64, contexts, 1024);
BPF_TABLE("hash", u32, struct cuda_process, cuda_processes, 1024);
/* By tid, while the call runs. Not LRU: a free may wait for the GPU for long. */
BPF_TABLE("hash", u32, struct memory_call, memory_calls, 8192);
/* By tid, since the last call of a runtime function: nothing tells when it has returned. User space makes room (lost.py); of a call
 * that was forgotten the runtime itself is the caller.
 */
#ifndef RUNTIME_CALLS_ENTRIES
#define RUNTIME_CALLS_ENTRIES 8192
#endif
BPF_TABLE("hash", u32, struct runtime_call, runtime_calls, RUNTIME_CALLS_ENTRIES);
