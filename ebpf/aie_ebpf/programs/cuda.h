/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the programs on CUDA's driver API. Their uprobes are attached for one process each; `watched` is looked up to count
 * what they cost it.
 *
 * Functions that are counted by name, as cuda.h calls them; readers/cuda_calls.py takes the names from here.
 */
enum call {
    CALL_cuMemAlloc, CALL_cuMemAllocPitch, CALL_cuMemAllocManaged, CALL_cuMemAllocAsync, CALL_cuMemAllocFromPoolAsync,
    CALL_cuMemCreate, CALL_cuMemAllocHost, CALL_cuMemHostAlloc, CALL_cuMemHostRegister,
    CALL_cuMemFree, CALL_cuMemFreeAsync, CALL_cuMemRelease, CALL_cuMemFreeHost, CALL_cuMemHostUnregister,
    CALL_cuCtxCreate, CALL_cuCtxDestroy,
    CALL_cuDevicePrimaryCtxRetain, CALL_cuDevicePrimaryCtxRelease, CALL_cuDevicePrimaryCtxReset,
    CALL_cuStreamSynchronize, CALL_cuEventSynchronize, CALL_cuCtxSynchronize,
    CALL_cuLaunchKernel, CALL_cuLaunchKernelEx, CALL_cuLaunchCooperativeKernel, CALL_cuGraphLaunch,
};

/* The stack pointer that the function was entered with, as seen on its return: on x86 the return address has been popped. */
#ifdef bpf_target_x86
#define SP_ON_ENTRY(ctx) (PT_REGS_SP(ctx) - 8)
#else
#define SP_ON_ENTRY(ctx) PT_REGS_SP(ctx)
#endif

/* Who called: on entry only. 0 where it cannot be read. */
static __always_inline u64 return_address(struct pt_regs *ctx) {
#ifdef bpf_target_x86
    u64 address = 0;
    bpf_probe_read_user(&address, sizeof(address), (void *)PT_REGS_SP(ctx));
    return address;
#else
    return PT_REGS_RET(ctx); /* the link register */
#endif
}

/* Where a probed call was entered. The outermost one of a thread is kept while it runs, and only that counts: cuMemAllocAsync may
 * call cuMemAllocFromPoolAsync.
 */
struct frame {
    u64 start_ns;
    u64 sp;
    u64 return_address;
};

/* Nested calls begin soon after their outer one. An entry that is older was left behind: by a longjmp, or by a thread that ended. */
#define NESTED_NS 10000000000ULL

/* Where the kernel's return probe stands in for the caller: at the start of a page of its own. */
#define IS_RETURN_PROBE(address) (((address) & 4095) == 0)

/* Whether a call is made from inside another. The stack grows down. Where the outer function jumps to the inner one as its last
 * act, both have the same stack pointer, and where the caller was there is the return probe of the outer one.
 */
static __always_inline bool is_nested(struct frame *outer, struct frame *call) {
    if (call->start_ns - outer->start_ns > NESTED_NS) return false;
    return call->sp < outer->sp || (call->sp == outer->sp && IS_RETURN_PROBE(call->return_address));
}

static __always_inline struct frame frame_of(struct pt_regs *ctx) {
    struct frame frame = {.start_ns = bpf_ktime_get_ns(), .sp = PT_REGS_SP(ctx), .return_address = return_address(ctx)};
    return frame;
}

struct failure {
    u32 tgid;
    u32 call;
    u32 code; /* CUresult */
    u32 zero;
};
/* How often the driver refused, by function and result. */
BPF_TABLE("hash", struct failure, u64, failures, 2048);

static __always_inline void note_failure(u32 tgid, u32 call, u32 code) {
    struct failure failure = {.tgid = tgid, .call = call, .code = code};
    u64 none = 0, *count = failures.lookup_or_try_init(&failure, &none);
    if (count) __sync_fetch_and_add(count, 1);
    else note_lost(LOST_GROUP);
}
