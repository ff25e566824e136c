/* SPDX-License-Identifier: Apache-2.0
 *
 * Which code waits at a futex: the registers with which a thread entered the call, and a copy of the top of its stack. Nothing is
 * unwound here: libc keeps no frame pointers, and the tables that say where its frames lie are for user space to read.
 *
 * A tracepoint has no user registers, but the task has: bpf_task_pt_regs, since Linux 5.15, for programs under the GPL (BCC's
 * default) on kernels with BTF. Both helpers are named by their numbers, as a BCC that is older than they are does not know them.
 *
 * A stack is dear (1 to 3 us, 4 KiB), so few are taken: EACH of a thread at an address, EACH_THREAD of a thread (one that makes a
 * lock for each wait would take all there are), MOST of a process. All of it for one window, which `begun_ns` tells from others.
 */
static void *(*current_task_with_type)(void) = (void *)158;        /* bpf_get_current_task_btf */
static void *(*user_registers_of)(void *task) = (void *)175;       /* bpf_task_pt_regs */

#define STACK_BYTES 4096
#define CHUNK_BYTES 512 /* read by itself: the stack may end before STACK_BYTES, and what lies beyond cannot be read */
#define EACH 2
#define EACH_THREAD 16
#define MOST 128

#define IS_WAIT (1 << 0 | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 13) /* as in locks.bpf.c */
#define FUTEX_COMMAND 127

#if defined(__aarch64__)
typedef struct user_pt_regs user_registers; /* the kernel's own struct begins with it */
#define USER_SP(r) ((r)->sp)
#else
typedef struct pt_regs user_registers;
#define USER_SP(r) ((r)->sp)
#endif

struct lock_stack {
    u64 address;
    u32 tgid;
    u32 tid;
    u64 stack_bytes;
    user_registers registers;
    u8 stack[STACK_BYTES];
};
/* 1 MiB: two processes' worth at once; what does not fit is counted. */
BPF_RINGBUF_OUTPUT(lock_stacks, 256);

/* By tgid: the processes that a window is open on. `only`: addresses in `sampled_locks` and no others. */
struct sampled {
    u64 begun_ns;
    u64 taken;
    u64 only;
};
#ifndef SAMPLED_ENTRIES
#define SAMPLED_ENTRIES 1024
#endif
BPF_TABLE("hash", u32, struct sampled, sampled, SAMPLED_ENTRIES);
struct lock_at {
    u64 address;
    u64 tgid;
};
BPF_TABLE("hash", struct lock_at, u64, sampled_locks, 1024);

/* How many were taken of a thread at an address; at address 0, of the thread. LRU: a thread ends without telling
 * this map. One that is dropped may have some more taken, still no more than MOST of its process: no number depends on it.
 */
struct place {
    u64 address;
    u64 tid;
};
struct taken {
    u64 begun_ns;
    u64 count;
};
BPF_TABLE("lru_hash", struct place, struct taken, stacks_taken, 4096);

/* Whether one more may be taken of a place, which is noted. */
static __always_inline bool may_take(u64 address, u32 tid, u64 begun_ns, u64 most) {
    struct place place = {.address = address, .tid = tid};
    struct taken first = {.begun_ns = begun_ns, .count = 1};
    struct taken *taken = stacks_taken.lookup(&place);
    if (taken && taken->begun_ns == begun_ns) {
        if (taken->count >= most) return false;
        taken->count++; /* of one thread: nobody else counts here */
        return true;
    }
    stacks_taken.update(&place, &first);
    return true;
}

static __always_inline bool is_wanted(struct sampled *window, u64 address, u32 tgid) {
    struct lock_at lock = {.address = address, .tgid = tgid};
    return !window->only || sampled_locks.lookup(&lock);
}

TRACEPOINT_PROBE(syscalls, sys_enter_futex) {
    u64 pid_tgid = bpf_get_current_pid_tgid(), address = (u64)args->uaddr;
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct sampled *window = sampled.lookup(&tgid);
    if (!window) return 0;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit(process, SET_LOCK_STACKS);
    if (!(1 << (args->op & FUTEX_COMMAND & 31) & IS_WAIT)) return 0;
    /* Who waits for the interpreter lock is told by Python's own stacks. */
    if (address >= process->gil_start && address < process->gil_end) return 0;
    if (window->taken >= MOST || !is_wanted(window, address, tgid)) return 0;
    if (!may_take(address, tid, window->begun_ns, EACH) || !may_take(0, tid, window->begun_ns, EACH_THREAD)) return 0;
    __sync_fetch_and_add(&window->taken, 1); /* of several CPUs at once, each may take the last one */

    struct lock_stack *found = lock_stacks.ringbuf_reserve(sizeof(*found));
    if (!found) {
        note_lost(LOST_EVENT);
        return 0;
    }
    found->address = address;
    found->tgid = tgid;
    found->tid = tid;
    found->stack_bytes = 0;
    void *registers = user_registers_of(current_task_with_type());
    if (bpf_probe_read_kernel(&found->registers, sizeof(found->registers), registers)) {
        lock_stacks.ringbuf_discard(found, 0);
        note_lost(LOST_EVENT);
        return 0;
    }
    u64 sp = USER_SP(&found->registers);
#pragma unroll
    for (int at = 0; at < STACK_BYTES; at += CHUNK_BYTES) {
        if (bpf_probe_read_user(&found->stack[at], CHUNK_BYTES, (void *)(sp + at))) break;
        found->stack_bytes = at + CHUNK_BYTES;
    }
    lock_stacks.ringbuf_submit(found, 0);
    return 0;
}
