/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that are watched: user space puts them in, with where their interpreter keeps its GIL (0, 0: no CPython), and reads
 * how often programs ran for them. Whatever is not in here costs one look-up. `off` has a bit for each set that took more of the
 * process than it may. A uprobe is a trap as long as it is attached: its programs count a hit before they look at `off`, so that
 * what detaching lets through is charged. A tracepoint's are as good as free where they find it.
 */
enum set { SET_LOCKS, SET_SCHED, SET_FAULTS, SET_CUDA_MEMORY, SET_CUDA_SYNC, SET_CUDA_COPY, SET_CUDA_LAUNCH, SET_GC, SET_LOCK_STACKS, SETS };

struct watched {
    u64 gil_start;
    u64 gil_end;
    u64 off;
    u64 hits[SETS];
    u64 major_faults;
};

static __always_inline bool is_off(struct watched *process, int set) {
    return process->off >> set & 1;
}

static __always_inline void hit(struct watched *process, int set) {
    __sync_fetch_and_add(&process->hits[set], 1);
}
