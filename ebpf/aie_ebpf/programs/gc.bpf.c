/* SPDX-License-Identifier: Apache-2.0
 *
 * Collections of CPython's garbage collector, during which no other Python code of the process runs: USDT probes python:gc__start and
 * python:gc__done.
 */

/* By tid: when the collection began that the thread is in. One begins inside another only through a finaliser: the inner one counts. */
BPF_TABLE("hash", u32, u64, gc_running, 4096);
/* By tgid; user space removes it with the process. */
BPF_TABLE("hash", u32, struct histogram, gc_pauses, 1024);

/* gc__start(int generation) */
int gc_start(struct pt_regs *ctx) {
    u64 pid_tgid = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_GC);
    if (is_off(process, SET_GC)) return 0;
    if (gc_running.update(&tid, &now)) note_lost(LOST_CALL);
    return 0;
}

/* gc__done(long collected) */
int gc_done(struct pt_regs *ctx) {
    u64 pid_tgid = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (process) hit_entry(ctx, process, SET_GC);
    u64 *began = gc_running.lookup(&tid);
    if (!began) return 0; /* it began before we came */
    if (process) {
        struct histogram none = {};
        struct histogram *pauses = gc_pauses.lookup_or_try_init(&tgid, &none);
        if (pauses) observe_ns(pauses, now - *began);
        else note_lost(LOST_GROUP);
    }
    gc_running.delete(&tid);
    return 0;
}
