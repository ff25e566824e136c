/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that are watched: user space puts them in, with where their interpreter keeps its GIL (0, 0: no CPython), and reads
 * how often programs ran for them. Whatever is not in here costs one look-up. `off` has a bit for each set that took more of the
 * process than it may. A uprobe is a trap as long as it is attached: its programs count a hit before they look at `off`, so that
 * what detaching lets through is charged. A tracepoint's are as good as free where they find it.
 */
/* What a hit costs is not the same everywhere: where an instruction is stepped over, it may be 30 times what it is where one is
 * emulated. User space knows, and says it by the cookie with which it attaches (COOKIES: where links can carry one).
 */
enum hit_kind { HIT, HIT_STEPPED, HIT_EMULATED, HIT_RETURN, HIT_KINDS };
enum set { SET_LOCKS, SET_SCHED, SET_FAULTS, SET_CUDA_MEMORY, SET_CUDA_SYNC, SET_CUDA_COPY, SET_CUDA_LAUNCH, SET_GC, SET_LOCK_STACKS, SETS };

struct watched {
    u64 gil_start;
    u64 gil_end;
    u64 off;
    u64 hits[HIT_KINDS * SETS]; /* by kind, and of a kind by set */
    u64 major_faults;
    u64 entered; /* the last function, where probes are detached one by one: those of the one that is called most go first */
};

static __always_inline bool is_off(struct watched *process, int set) {
    return process->off >> set & 1;
}

static __always_inline void hit(struct watched *process, int set) {
    __sync_fetch_and_add(&process->hits[set], 1);
}

#ifdef COOKIES
static u64 (*attach_cookie)(void *ctx) = (void *)174; /* bpf_get_attach_cookie, which a BCC that is older does not know */
#endif

/* At a function's entry. */
static __always_inline void hit_entry(struct pt_regs *ctx, struct watched *process, int set) {
#ifdef COOKIES
    u32 kind = attach_cookie(ctx) & (HIT_KINDS - 1);
    __sync_fetch_and_add(&process->hits[kind * SETS + set], 1);
#else
    hit(process, set);
    process->entered = PT_REGS_IP(ctx);
#endif
}

static __always_inline void hit_return(struct watched *process, int set) {
    __sync_fetch_and_add(&process->hits[HIT_RETURN * SETS + set], 1);
}
