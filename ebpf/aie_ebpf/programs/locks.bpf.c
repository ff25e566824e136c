/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits on futexes, by process and address. The GIL is a futex inside the interpreter's _PyRuntime: no uprobe is needed.
 *
 * A wait is not always for a lock: an idle worker waits for work in the same call. They are told apart by who wakes, and when: a
 * thread that has waited for a lock has it then, and wakes the next one itself, at the same address, when it is done (a hand-off,
 * after a time of holding). The workers of a queue are woken by others; where they pass the queue's own lock on, they do it at once.
 * User space judges by the share of hand-offs and by the time of holding. Who comes at the moment when a lock is given back takes it
 * without a wait, ahead of the one that was woken for it: how long it is held then is not seen. An owner that takes its lock again
 * at once never waits, and nobody hands on: there those who wait are woken in vain, and wait at once again for a mutex that says
 * that it is fought for.
 */
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_REQUEUE 3
#define FUTEX_CMP_REQUEUE 4
#define FUTEX_WAKE_OP 5
#define FUTEX_LOCK_PI 6
#define FUTEX_UNLOCK_PI 7
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAKE_BITSET 10
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CMD 127 /* without the private and clock flags */

#define IS_WAIT (1 << FUTEX_WAIT | 1 << FUTEX_WAIT_BITSET | 1 << FUTEX_LOCK_PI | 1 << FUTEX_WAIT_REQUEUE_PI | 1 << FUTEX_LOCK_PI2)
#define IS_WAKE (1 << FUTEX_WAKE | 1 << FUTEX_WAKE_BITSET | 1 << FUTEX_WAKE_OP | 1 << FUTEX_UNLOCK_PI | 1 << FUTEX_REQUEUE | 1 << FUTEX_CMP_REQUEUE)
#define EAGAIN 11
/* glibc's mutex, and others that took after it: the word is 2 while somebody waits for it. Conditions wait by FUTEX_WAIT_BITSET.
 * A semaphore may have the same value, and its idle worker sleep by the same call (oneTBB's do): but who is woken there has work.
 */
#define MUTEX_CONTENDED 2
#define IN_VAIN_NS 50000 /* from the end of a wait to the next one at the same word: a few instructions, and perhaps a preemption */

struct lock {
    u64 address; /* for the GIL, of _PyRuntime: it is several words */
    u32 tgid;
    u32 is_gil;
};

struct lock_use {
    u64 waits;
    u64 wait_ns;
    u64 longest_ns; /* not atomic: of two at once, the shorter may win */
    u64 handoffs;
    u64 timed;     /* of these, by who has waited since it handed on last: */
    u64 held_ns;   /* from the end of that wait to the hand-off */
    u64 contended; /* waits for a mutex that says so itself, by threads that were just woken in vain */
};

struct waiting {
    u64 start_ns;
    u64 run_queue_ns; /* of it, ready and without a CPU: sched counts that */
    u32 contended;
    u32 plain;
    struct lock lock;
};

/* Drained every second, so that addresses that are no longer used make room. */
#ifndef LOCKS_ENTRIES
#define LOCKS_ENTRIES 8192
#endif
BPF_TABLE("hash", struct lock, struct lock_use, locks, LOCKS_ENTRIES);
/* By tid; an entry lives as long as the call. Not LRU: a wait of hours must not be evicted. */
#ifndef FUTEX_WAITING_ENTRIES
#define FUTEX_WAITING_ENTRIES 16384
#endif
BPF_TABLE("hash", u32, struct waiting, futex_waiting, FUTEX_WAITING_ENTRIES);
/* Which thread has waited where, and when its last wait there ended (the lowest bit aside); 0 once it has handed on. A thread
 * may never come back to an address, and ends without telling this map: user space makes room once it is full (lost.py). Of a visit
 * that finds none, the hand-off is not seen.
 */
#ifndef VISITS_ENTRIES
#define VISITS_ENTRIES 16384
#endif
struct visit {
    u64 address;
    u64 tid;
};
/* The lowest bit: it waited by FUTEX_WAIT. Who does and wakes all that wait there has come last to a barrier (glibc's, OpenMP's), and
 * what it did before was work. A reader-writer lock wakes all as well: there they wait by FUTEX_WAIT_BITSET.
 */
#define PLAIN 1ULL
BPF_TABLE("hash", struct visit, u64, visits, VISITS_ENTRIES);

static __always_inline struct lock_use *use_of(struct lock *lock) {
    struct lock_use none = {};
    struct lock_use *use = locks.lookup_or_try_init(lock, &none);
    if (!use) note_lost(LOST_LOCK);
    return use;
}

TRACEPOINT_PROBE(syscalls, sys_enter_futex) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process || is_off(process, SET_LOCKS)) return 0;
    hit(process, SET_LOCKS);
    u32 command = 1 << (args->op & FUTEX_CMD & 31);
    struct lock lock = {.address = (u64)args->uaddr, .tgid = tgid};
    if (lock.address >= process->gil_start && lock.address < process->gil_end) {
        lock.address = process->gil_start;
        lock.is_gil = 1;
    }
    if (command & IS_WAIT) {
        u64 now = bpf_ktime_get_ns();
        bool plain = (args->op & FUTEX_CMD) == FUTEX_WAIT, contended = false;
        if (plain && args->val == MUTEX_CONTENDED) {
            struct visit visit = {.address = lock.address, .tid = tid};
            u64 *ended = visits.lookup(&visit);
            contended = ended && now - *ended < IN_VAIN_NS;
        }
        struct waiting waiting = {.start_ns = now, .contended = contended, .plain = plain, .lock = lock};
        if (futex_waiting.update(&tid, &waiting)) note_lost(LOST_FUTEX);
    } else if (command & IS_WAKE) {
        struct visit visit = {.address = lock.address, .tid = tid};
        u64 *since = visits.lookup(&visit);
        if (!since) return 0;
        u64 plain = *since & PLAIN, ended_ns = *since - plain;
        if (plain && args->val > 1) return 0;
        struct lock_use *use = use_of(&lock);
        if (use) {
            __sync_fetch_and_add(&use->handoffs, 1);
            if (ended_ns) {
                __sync_fetch_and_add(&use->timed, 1);
                __sync_fetch_and_add(&use->held_ns, bpf_ktime_get_ns() - ended_ns);
            }
        }
        *since = plain;
    }
    return 0;
}

TRACEPOINT_PROBE(syscalls, sys_exit_futex) {
    u32 tid = bpf_get_current_pid_tgid();
    struct waiting *waiting = futex_waiting.lookup(&tid);
    if (!waiting) return 0;
    struct watched *process = watched.lookup(&waiting->lock.tgid);
    if (process) hit(process, SET_LOCKS);
    if (process && args->ret != -EAGAIN) { /* else the word had changed already: it did not wait */
        struct lock lock = waiting->lock;
        u64 now = bpf_ktime_get_ns();
        struct lock_use *use = use_of(&lock);
        if (use) {
            u64 ns = now - waiting->start_ns;
            ns = ns > waiting->run_queue_ns ? ns - waiting->run_queue_ns : 0;
            __sync_fetch_and_add(&use->waits, 1);
            __sync_fetch_and_add(&use->wait_ns, ns);
            __sync_fetch_and_add(&use->contended, waiting->contended);
            if (ns > use->longest_ns) use->longest_ns = ns;
        }
        struct visit visit = {.address = lock.address, .tid = tid};
        u64 ended = now & ~PLAIN | waiting->plain;
        if (visits.update(&visit, &ended)) note_lost(LOST_VISIT);
    }
    futex_waiting.delete(&tid);
    return 0;
}
