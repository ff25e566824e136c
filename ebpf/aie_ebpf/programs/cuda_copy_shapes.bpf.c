/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies whose size and direction stand in memory of the caller: of rectangles, of boxes, of several at once.
 */
/* CUmemorytype */
#define MEMORY_HOST 1
#define MEMORY_DEVICE 2
#define MEMORY_ARRAY 3

/* CUDA_MEMCPY2D: one side of it, and the size behind both. */
struct side_2d {
    u64 x, y;
    u32 type, unused;
    u64 host, device, array, pitch;
};
struct copy_2d {
    struct side_2d src, dst;
    u64 width_bytes, height;
};
/* CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER, which has a context in place of `reserved`. */
struct side_3d {
    u64 x, y, z, lod;
    u32 type, unused;
    u64 host, device, array, reserved, pitch, height;
};
struct copy_3d {
    struct side_3d src, dst;
    u64 width_bytes, height, depth;
};

#define NOT_COUNTED (UNIFIED + 1) /* from host to host: no device has a part in it */

static __always_inline u32 direction_of(u32 src, u32 dst) {
    if (src == MEMORY_ARRAY) src = MEMORY_DEVICE;
    if (dst == MEMORY_ARRAY) dst = MEMORY_DEVICE;
    if (src > MEMORY_DEVICE || dst > MEMORY_DEVICE) return UNIFIED;
    if (src == MEMORY_HOST) return dst == MEMORY_HOST ? NOT_COUNTED : HTOD;
    return dst == MEMORY_HOST ? DTOH : DTOD;
}

/* CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy); 2DUnaligned_v2; 2DAsync_v2 has a stream after it */
int cuMemcpy2D_entry(struct pt_regs *ctx, u64 p_copy) {
    struct copy_2d c = {};
    if (bpf_probe_read_user(&c, sizeof(c), (void *)p_copy)) note_lost(LOST_EVENT);
    return copy(ctx, direction_of(c.src.type, c.dst.type), c.width_bytes * c.height);
}

/* CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy); 3DAsync_v2 has a stream after it */
int cuMemcpy3D_entry(struct pt_regs *ctx, u64 p_copy) {
    struct copy_3d c = {};
    if (bpf_probe_read_user(&c, sizeof(c), (void *)p_copy)) note_lost(LOST_EVENT);
    return copy(ctx, direction_of(c.src.type, c.dst.type), c.width_bytes * c.height * c.depth);
}

/* CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy); 3DPeerAsync has a stream after it */
int cuMemcpy3DPeer_entry(struct pt_regs *ctx, u64 p_copy) {
    struct copy_3d c = {};
    if (bpf_probe_read_user(&c, sizeof(c), (void *)p_copy)) note_lost(LOST_EVENT);
    return copy(ctx, PEER, c.width_bytes * c.height * c.depth);
}

#define SIZES_AT_ONCE 16
#define MOST_CHUNKS 16

/* CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, ...). Counts as one copy of the sum
 * of the first 256; that a batch had more is noted as lost.
 */
int cuMemcpyBatch_entry(struct pt_regs *ctx, u64 dsts, u64 srcs, u64 sizes, u64 count) {
    u64 total = 0, first = 0;
    long unread = count > SIZES_AT_ONCE * MOST_CHUNKS;
    for (u32 chunk = 0; chunk < MOST_CHUNKS && first < count; chunk++) {
        u64 some[SIZES_AT_ONCE] = {};
        u64 left = count - first;
        u32 here = left < SIZES_AT_ONCE ? left : SIZES_AT_ONCE;
        unread |= bpf_probe_read_user(some, (here & 31) * 8, (void *)(sizes + first * 8));
#pragma unroll
        for (int i = 0; i < SIZES_AT_ONCE; i++) total += some[i];
        first += SIZES_AT_ONCE;
    }
    if (unread) note_lost(LOST_EVENT);
    return copy(ctx, UNIFIED, total);
}
