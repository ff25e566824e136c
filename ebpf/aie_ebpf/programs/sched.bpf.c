/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the threads of watched processes spend the time in which they do not run: in the run queue, or asleep, and why. Needs
 * futex_waiting of locks.bpf.c and in_sync: a sleep inside one of those is theirs.
 */
/* Above these bits sched_switch says that the thread was preempted in the kernel (0x100): it may run on. */
#define TASK_STATES 0xff
#define TASK_UNINTERRUPTIBLE 0x02
#define TASK_GONE (0x10 | 0x20) /* EXIT_DEAD, EXIT_ZOMBIE */
#define MULTI_SLEEP_NS 100000000

struct thread {
    u64 off_ns;   /* since when it does not run; 0: it runs */
    u64 ready_ns; /* since when it could run again; 0: it sleeps */
    u64 disk_ns;  /* uninterruptible sleep that nobody has claimed yet: a page fault may, when it ends */
    u32 tgid;
    u32 state;
};

/* By process; put in by user space, because 600 zeros do not fit on a BPF stack. */
struct times {
    struct histogram run_queue;
    struct histogram off_cpu;
    u64 sleep_ns;
    u64 disk_ns;
    u64 page_fault_ns;
    u64 sync_run_queue_ns; /* in the run queue inside a CUDA synchronisation, which counts it too */
    u64 sync_off_ns;       /* asleep inside one */
};
BPF_TABLE("hash", u32, struct times, times, 1024);
/* By tid, as long as the thread lives. */
#ifndef THREADS_ENTRIES
#define THREADS_ENTRIES 32768
#endif
BPF_TABLE("hash", u32, struct thread, threads, THREADS_ENTRIES);

static __always_inline void leaves(u32 tid, u32 tgid, long state, u64 now) {
    struct thread *known = threads.lookup(&tid);
    if (state & TASK_GONE) {
        threads.delete(&tid);
        return;
    }
    struct thread thread = {.off_ns = now, .ready_ns = state ? 0 : now, .tgid = tgid, .state = state};
    if (known && known->disk_ns) {
        /* A fault may sleep more than once before it ends. */
        if ((state & TASK_UNINTERRUPTIBLE) && known->disk_ns < MULTI_SLEEP_NS) {
            thread.disk_ns = known->disk_ns;
        } else {
            struct times *t = times.lookup(&tgid);
            if (t) __sync_fetch_and_add(&t->disk_ns, known->disk_ns);
        }
    }
    if (threads.update(&tid, &thread)) note_lost(LOST_THREAD);
}

static __always_inline void arrives(u32 tid, struct thread *thread, u64 now) {
    struct times *t = times.lookup(&thread->tgid);
    if (!t) return;
    u64 ready = thread->ready_ns ? thread->ready_ns : now; /* a wake-up that was not seen */
    u64 queued = now - ready, slept = ready - thread->off_ns;
    observe_ns(&t->run_queue, queued);
    struct waiting *waiting = futex_waiting.lookup(&tid);
    bool syncs = in_sync.lookup(&tid) != NULL;
    if (syncs) __sync_fetch_and_add(&t->sync_run_queue_ns, queued);
    else if (waiting) waiting->run_queue_ns += queued;
    if (slept) {
        observe_ns(&t->off_cpu, slept);
        if (syncs) __sync_fetch_and_add(&t->sync_off_ns, slept);
        else if (waiting) ; /* locks counts it when the call returns */
        else if (thread->state & TASK_UNINTERRUPTIBLE) thread->disk_ns += slept;
        else __sync_fetch_and_add(&t->sleep_ns, slept);
    }
    thread->off_ns = 0;
}

TRACEPOINT_PROBE(sched, sched_switch) {
    u64 now = bpf_ktime_get_ns();
    u32 tgid = bpf_get_current_pid_tgid() >> 32; /* of the one that leaves */
    u32 prev = args->prev_pid, next = args->next_pid;
    struct watched *process = watched.lookup(&tgid);
    if (process && !is_off(process, SET_SCHED)) {
        hit(process, SET_SCHED);
        leaves(prev, tgid, args->prev_state & TASK_STATES, now);
    }
    struct thread *thread = threads.lookup(&next);
    if (!thread) return 0;
    process = watched.lookup(&thread->tgid);
    if (thread->off_ns && process && !is_off(process, SET_SCHED)) {
        hit(process, SET_SCHED);
        arrives(next, thread, now);
    } else { /* released, or switched off, while it slept or ran */
        threads.delete(&next);
    }
    return 0;
}

TRACEPOINT_PROBE(sched, sched_wakeup) {
    u32 tid = args->pid;
    struct thread *thread = threads.lookup(&tid);
    if (thread && thread->off_ns && !thread->ready_ns) thread->ready_ns = bpf_ktime_get_ns();
    return 0;
}
