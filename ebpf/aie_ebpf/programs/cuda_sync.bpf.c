/* SPDX-License-Identifier: Apache-2.0
 *
 * Time that threads are blocked in CUDA's synchronisation, and calls that have not returned. Whether the library sleeps or spins
 * there makes no difference: while a thread is inside, it is in `in_sync`, and sched counts its sleep as the GPU's doing.
 */
struct sync_call {
    struct frame frame;
    u32 tgid;
    u32 call;
};
struct sync {
    u32 tgid;
    u32 call;
};
/* By tid, as long as the call runs. Not LRU: a wait of hours is what we look for. User space removes those whose thread is gone. */
BPF_TABLE("hash", u32, struct sync_call, sync_calls, 8192);
/* Three functions a process. */
BPF_TABLE("hash", struct sync, struct histogram, syncs, 4096);
/* The zero that a new entry begins with is large for the stack. */
BPF_ARRAY(no_sync, struct histogram, 1);

static __always_inline int sync_enter(struct pt_regs *ctx, u32 name) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_CUDA_SYNC);
    if (is_off(process, SET_CUDA_SYNC)) return 0;
    struct sync_call call = {.frame = frame_of(ctx), .tgid = tgid, .call = name};
    struct sync_call *outer = sync_calls.lookup(&tid);
    if (outer && is_nested(&outer->frame, &call.frame)) return 0;
    if (sync_calls.update(&tid, &call)) note_lost(LOST_CALL);
    else in_sync.update(&tid, &call.frame.start_ns);
    return 0;
}

/* CUresult cuStreamSynchronize(CUstream hStream) */
int cuStreamSynchronize_entry(struct pt_regs *ctx) { return sync_enter(ctx, CALL_cuStreamSynchronize); }

/* CUresult cuEventSynchronize(CUevent hEvent) */
int cuEventSynchronize_entry(struct pt_regs *ctx) { return sync_enter(ctx, CALL_cuEventSynchronize); }

/* CUresult cuCtxSynchronize(void); cuCtxSynchronize_v2(CUcontext ctx) */
int cuCtxSynchronize_entry(struct pt_regs *ctx) { return sync_enter(ctx, CALL_cuCtxSynchronize); }

/* The return of all of them. An error of a kernel that ran before is told here first, such as 700, an illegal address. */
int cuda_sync_return(struct pt_regs *ctx) {
    u64 now = bpf_ktime_get_ns();
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid, code = PT_REGS_RC(ctx);
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_return(process, SET_CUDA_SYNC);
    if (is_off(process, SET_CUDA_SYNC)) return 0;
    struct sync_call *call = sync_calls.lookup(&tid);
    if (!call || call->frame.sp != SP_ON_ENTRY(ctx)) return 0; /* nested, or entered before we came */
    u64 ns = now - call->frame.start_ns;
    struct sync sync = {.tgid = tgid, .call = call->call};
    sync_calls.delete(&tid);
    in_sync.delete(&tid);
    if (code) note_failure(tgid, sync.call, code);
    struct histogram *h = syncs.lookup(&sync);
    if (!h) {
        int first = 0;
        struct histogram *none = no_sync.lookup(&first);
        if (none) h = syncs.lookup_or_try_init(&sync, none);
    }
    if (h) observe_ns(h, ns);
    else note_lost(LOST_GROUP);
    return 0;
}
