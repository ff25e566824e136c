/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that copies ask for, by direction. Entry only: whether a copy succeeds is not seen, nor when an asynchronous one is done.
 */
enum direction { HTOD, DTOH, DTOD, PEER, UNIFIED };
#define BURST_NS 1000000

struct route {
    u32 tgid;
    u32 direction;
};
struct burst {
    u64 start_ns;
    u64 bytes;
    u64 largest;
};
/* Five directions a process. */
BPF_TABLE("hash", struct route, struct histogram, copies, 4096);
/* The zero that a new entry begins with is large for the stack. */
BPF_ARRAY(no_copy, struct histogram, 1);
/* The most that is asked for in 1 ms, the millisecond beginning with a copy. User space drains this each second, so that it is the
 * largest of that second; a burst that the reading cuts in two counts as two. Approximate, too, where threads copy at once: of two
 * that begin a millisecond together one is lost, and `largest` may keep the smaller.
 */
BPF_TABLE("hash", struct route, struct burst, bursts, 4096);

static __always_inline void count_burst(struct route *route, u64 bytes) {
    u64 now = bpf_ktime_get_ns();
    struct burst none = {.start_ns = now};
    struct burst *burst = bursts.lookup_or_try_init(route, &none);
    if (!burst) {
        note_lost(LOST_GROUP);
        return;
    }
    if (now - burst->start_ns >= BURST_NS) {
        burst->start_ns = now;
        burst->bytes = 0;
    }
    __sync_fetch_and_add(&burst->bytes, bytes);
    if (burst->bytes > burst->largest) burst->largest = burst->bytes;
}

static __always_inline int copy(struct pt_regs *ctx, u32 direction, u64 bytes) {
    struct route route = {.tgid = bpf_get_current_pid_tgid() >> 32, .direction = direction};
    struct watched *process = watched.lookup(&route.tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_CUDA_COPY);
    if (is_off(process, SET_CUDA_COPY)) return 0;
    if (direction > UNIFIED || !bytes) return 0;
    struct histogram *sizes = copies.lookup(&route);
    if (!sizes) {
        int first = 0;
        struct histogram *none = no_copy.lookup(&first);
        if (none) sizes = copies.lookup_or_try_init(&route, none);
    }
    if (!sizes) {
        note_lost(LOST_GROUP);
        return 0;
    }
    observe_bytes(sizes, bytes);
    count_burst(&route, bytes);
    return 0;
}

/* CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount); HtoDAsync_v2 has a stream after it */
int cuMemcpyHtoD_entry(struct pt_regs *ctx, u64 dst, u64 src, u64 bytes) { return copy(ctx, HTOD, bytes); }

/* CUresult cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) */
int cuMemcpyDtoH_entry(struct pt_regs *ctx, u64 dst, u64 src, u64 bytes) { return copy(ctx, DTOH, bytes); }

/* CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) */
int cuMemcpyDtoD_entry(struct pt_regs *ctx, u64 dst, u64 src, u64 bytes) { return copy(ctx, DTOD, bytes); }

/* CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) */
int cuMemcpy_entry(struct pt_regs *ctx, u64 dst, u64 src, u64 bytes) { return copy(ctx, UNIFIED, bytes); }

/* CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount) */
int cuMemcpyPeer_entry(struct pt_regs *ctx, u64 dst, u64 dst_context, u64 src, u64 src_context, u64 bytes) { return copy(ctx, PEER, bytes); }
