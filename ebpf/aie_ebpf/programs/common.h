/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by all programs. They include no kernel header but ptrace.h and touch no kernel struct, so that any kernel's headers
 * compile them. 64-bit fields come first: the verifier refuses holes, and user space unpacks without padding.
 */
#include <uapi/linux/ptrace.h>

#define SLOTS 32     /* of a histogram; 28 are used: 1 us to 67 s, and one above */
#define LAST_SLOT 27 /* what is above all bounds */
#define LAST_SIZE_SLOT 27

/* Hash maps are shared by all CPUs and updated atomically, not per CPU: watched processes are few, so that CPUs seldom meet, and
 * a per-CPU entry would cost its size times 256 on a large host.
 */
struct histogram {
    u64 slots[SLOTS];
    u64 total; /* ns, or bytes */
};

/* What could not be noted because a map was full, by map; the reader exports it (readers/lost.py has the names). */
enum lost {
    LOST_FUTEX, LOST_LOCK, LOST_THREAD, LOST_BLOCK, LOST_EVENT, LOST_CALL, LOST_ALLOCATION, LOST_GROUP,
    LOST_VISIT, LOST_REQUEST, LOST_RUNTIME_CALL, LOST_REASONS
};
BPF_ARRAY(lost, u64, LOST_REASONS);

static __always_inline void note_lost(int reason) {
    u64 *count = lost.lookup(&reason);
    if (count) __sync_fetch_and_add(count, 1);
}

/* The smallest n with value <= 2^n, at most `last`. No loop, and no 64-bit count-leading-zeros, which BPF does not have. */
static __always_inline u32 slot_of(u64 value, u32 last) {
    u64 v = value ? value - 1 : 0;
    u32 slot = 0;
    if (v >> 32) { slot += 32; v >>= 32; }
    if (v >> 16) { slot += 16; v >>= 16; }
    if (v >> 8) { slot += 8; v >>= 8; }
    if (v >> 4) { slot += 4; v >>= 4; }
    if (v >> 2) { slot += 2; v >>= 2; }
    if (v >> 1) { slot += 1; v >>= 1; }
    if (v) slot += 1;
    return slot > last ? last : slot;
}

static __always_inline void observe_ns(struct histogram *h, u64 ns) {
    __sync_fetch_and_add(&h->slots[slot_of(ns / 1000, LAST_SLOT) & (SLOTS - 1)], 1);
    __sync_fetch_and_add(&h->total, ns);
}

/* Sizes begin at 256 bytes: slot n holds up to 2^(n + 8). */
static __always_inline void observe_bytes(struct histogram *h, u64 bytes) {
    u32 slot = slot_of(bytes, LAST_SIZE_SLOT + 8);
    slot = slot > 8 ? slot - 8 : 0;
    __sync_fetch_and_add(&h->slots[slot & (SLOTS - 1)], 1);
    __sync_fetch_and_add(&h->total, bytes);
}
