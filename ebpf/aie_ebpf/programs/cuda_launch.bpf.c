/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, by function. In a module of its own, attached for a bounded window only: a program that runs at every kernel launch is
 * what an engine feels.
 */
struct launch {
    u32 tgid;
    u32 call;
};
/* Four functions a process. */
BPF_TABLE("hash", struct launch, u64, launches, 1024);

static __always_inline int launched(struct pt_regs *ctx, u32 call) {
    struct launch launch = {.tgid = bpf_get_current_pid_tgid() >> 32, .call = call};
    struct watched *process = watched.lookup(&launch.tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_CUDA_LAUNCH);
    if (is_off(process, SET_CUDA_LAUNCH)) return 0;
    u64 none = 0, *count = launches.lookup_or_try_init(&launch, &none);
    if (count) __sync_fetch_and_add(count, 1);
    else note_lost(LOST_GROUP);
    return 0;
}

/* CUresult cuLaunchKernel(CUfunction f, unsigned gridDimX, ... CUstream hStream, void **kernelParams, void **extra) */
int cuLaunchKernel_entry(struct pt_regs *ctx) { return launched(ctx, CALL_cuLaunchKernel); }

/* CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) */
int cuLaunchKernelEx_entry(struct pt_regs *ctx) { return launched(ctx, CALL_cuLaunchKernelEx); }

/* CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gridDimX, ... CUstream hStream, void **kernelParams) */
int cuLaunchCooperativeKernel_entry(struct pt_regs *ctx) { return launched(ctx, CALL_cuLaunchCooperativeKernel); }

/* CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream). However many kernels the graph holds, it is one launch. */
int cuGraphLaunch_entry(struct pt_regs *ctx) { return launched(ctx, CALL_cuGraphLaunch); }
