/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries of the functions that cuda_memory counts: what each one's arguments mean.
 */
#define ALLOCATION(name, kind_, space_, pointer_, size_)                                                                    \
    struct memory_call call = {.call = CALL_##name, .action = ALLOCATES, .kind = kind_, .space = space_, .pointer = pointer_, \
                               .size = size_};                                                                              \
    return enter(ctx, &call)
#define FREE(name, space_, pointer_)                                                                            \
    struct memory_call call = {.call = CALL_##name, .action = FREES, .space = space_, .pointer = pointer_};     \
    return enter(ctx, &call)
#define CONTEXT(name, action_, id_)                                                                 \
    struct memory_call call = {.call = CALL_##name, .action = action_, .pointer = id_};             \
    return enter(ctx, &call)

/* CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) */
int cuMemAlloc_entry(struct pt_regs *ctx, u64 dptr, u64 bytesize) {
    ALLOCATION(cuMemAlloc, KIND_DEVICE, SPACE_DEVICE, dptr, bytesize);
}

/* CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned ElementSizeBytes) */
int cuMemAllocPitch_entry(struct pt_regs *ctx, u64 dptr, u64 pitch, u64 width, u64 height) {
    struct memory_call call = {.call = CALL_cuMemAllocPitch, .action = ALLOCATES_PITCH, .kind = KIND_DEVICE, .space = SPACE_DEVICE,
                               .pointer = dptr, .pitch_at = pitch, .size = height};
    return enter(ctx, &call);
}

/* CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned flags) */
int cuMemAllocManaged_entry(struct pt_regs *ctx, u64 dptr, u64 bytesize) {
    ALLOCATION(cuMemAllocManaged, KIND_MANAGED, SPACE_DEVICE, dptr, bytesize);
}

/* CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) */
int cuMemAllocAsync_entry(struct pt_regs *ctx, u64 dptr, u64 bytesize) {
    ALLOCATION(cuMemAllocAsync, KIND_ASYNC, SPACE_DEVICE, dptr, bytesize);
}

/* CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) */
int cuMemAllocFromPoolAsync_entry(struct pt_regs *ctx, u64 dptr, u64 bytesize) {
    ALLOCATION(cuMemAllocFromPoolAsync, KIND_ASYNC, SPACE_DEVICE, dptr, bytesize);
}

/* CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) */
int cuMemCreate_entry(struct pt_regs *ctx, u64 handle, u64 size) {
    ALLOCATION(cuMemCreate, KIND_VMM, SPACE_VMM, handle, size);
}

/* CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) */
int cuMemAllocHost_entry(struct pt_regs *ctx, u64 pp, u64 bytesize) {
    ALLOCATION(cuMemAllocHost, KIND_HOST, SPACE_HOST, pp, bytesize);
}

/* CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned Flags) */
int cuMemHostAlloc_entry(struct pt_regs *ctx, u64 pp, u64 bytesize) {
    ALLOCATION(cuMemHostAlloc, KIND_HOST, SPACE_HOST, pp, bytesize);
}

/* CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned Flags) */
int cuMemHostRegister_entry(struct pt_regs *ctx, u64 p, u64 bytesize) {
    struct memory_call call = {.call = CALL_cuMemHostRegister, .action = REGISTERS, .kind = KIND_REGISTERED, .space = SPACE_REGISTERED,
                               .pointer = p, .size = bytesize};
    return enter(ctx, &call);
}

/* CUresult cuMemFree_v2(CUdeviceptr dptr) */
int cuMemFree_entry(struct pt_regs *ctx, u64 dptr) { FREE(cuMemFree, SPACE_DEVICE, dptr); }

/* CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream). Counts as freed now, though the stream frees it later. */
int cuMemFreeAsync_entry(struct pt_regs *ctx, u64 dptr) { FREE(cuMemFreeAsync, SPACE_DEVICE, dptr); }

/* CUresult cuMemRelease(CUmemGenericAllocationHandle handle). Counts as freed now, though what is mapped lives until cuMemUnmap, and
 * what was retained until its last release: allocators unmap first.
 */
int cuMemRelease_entry(struct pt_regs *ctx, u64 handle) { FREE(cuMemRelease, SPACE_VMM, handle); }

/* CUresult cuMemFreeHost(void *p) */
int cuMemFreeHost_entry(struct pt_regs *ctx, u64 p) { FREE(cuMemFreeHost, SPACE_HOST, p); }

/* CUresult cuMemHostUnregister(void *p) */
int cuMemHostUnregister_entry(struct pt_regs *ctx, u64 p) { FREE(cuMemHostUnregister, SPACE_REGISTERED, p); }

/* CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev); _v3 and _v4 have more between, and pctx first, too */
int cuCtxCreate_entry(struct pt_regs *ctx, u64 pctx) { CONTEXT(cuCtxCreate, CREATES_CONTEXT, pctx); }

/* CUresult cuCtxDestroy_v2(CUcontext ctx) */
int cuCtxDestroy_entry(struct pt_regs *ctx, u64 context) { CONTEXT(cuCtxDestroy, DESTROYS_CONTEXT, context); }

/* CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) */
int cuDevicePrimaryCtxRetain_entry(struct pt_regs *ctx, u64 pctx, u32 dev) { CONTEXT(cuDevicePrimaryCtxRetain, RETAINS_PRIMARY, dev); }

/* CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) */
int cuDevicePrimaryCtxRelease_entry(struct pt_regs *ctx, u32 dev) { CONTEXT(cuDevicePrimaryCtxRelease, RELEASES_PRIMARY, dev); }

/* CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) */
int cuDevicePrimaryCtxReset_entry(struct pt_regs *ctx, u32 dev) { CONTEXT(cuDevicePrimaryCtxReset, RESETS_PRIMARY, dev); }

/* CUDA's runtime calls the driver for the program: who called the runtime is who asked. Entry only, for all of
 * cudaError_t cudaMalloc(void **devPtr, size_t size), cudaMallocAsync, cudaMallocManaged, cudaMallocHost, cudaHostAlloc, ...
 */
int cuda_runtime_entry(struct pt_regs *ctx) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_CUDA_MEMORY);
    if (is_off(process, SET_CUDA_MEMORY)) return 0;
    struct runtime_call call = {.sp = PT_REGS_SP(ctx), .caller = return_address(ctx), .function = PT_REGS_IP(ctx)};
    struct runtime_call *outer = runtime_calls.lookup(&tid);
    if (outer && call.sp != outer->sp && is_inside(outer, call.sp, call.caller)) return 0; /* one runtime function by another */
    if (runtime_calls.update(&tid, &call)) note_lost(LOST_RUNTIME_CALL);
    return 0;
}
