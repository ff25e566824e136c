/* A stand-in for NVIDIA's libcuda.so.1: the real names and arguments, no GPU. Each allocation is one malloc of the same size, and
 * nothing else is allocated, so that a tool which watches malloc must find the same amounts. Copies and launches do nothing.
 */
#include "cuda_stand_in.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
#define TOO_LARGE ((size_t)1 << 40)
#define PITCH 512

enum space { DEVICE = 1, VMM, HOST, REGISTERED };
static struct { void *pointer; enum space space; } known[MOST]; /* an open hash, by pointer */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread CUresult next_result;

static __thread jmp_buf *next_jump;

void stand_in_jump_next(jmp_buf *place) { next_jump = place; }
void stand_in_fail_next(CUresult code) { next_result = code; }

static CUresult failure(void) {
    CUresult code = next_result;
    next_result = CUDA_SUCCESS;
    return code;
}

static size_t slot_of(void *pointer) { return ((size_t)pointer >> 4) * 2654435761u % MOST; }

static CUresult remember(void *pointer, enum space space) {
    pthread_mutex_lock(&lock);
    size_t at = slot_of(pointer), tries = 0;
    while (known[at].space && tries++ < MOST) at = (at + 1) % MOST;
    if (!known[at].space) { known[at].pointer = pointer; known[at].space = space; }
    pthread_mutex_unlock(&lock);
    return tries < MOST ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* An entry stays in its place with a space of -1, so that those behind it are still found; good for as many as a test makes. */
static CUresult forget(void *pointer, enum space space) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (size_t at = slot_of(pointer), tries = 0; known[at].space && tries < MOST; at = (at + 1) % MOST, tries++)
        if (known[at].pointer == pointer && known[at].space == space) {
            known[at].space = -1;
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult allocate(void *where, size_t size, enum space space) {
    jmp_buf *jump = next_jump;
    next_jump = NULL;
    if (jump) longjmp(*jump, 1);
    CUresult code = failure();
    if (code) return code;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    void *pointer = size < TOO_LARGE ? malloc(size) : NULL;
    if (!pointer) return CUDA_ERROR_OUT_OF_MEMORY;
    *(void **)where = pointer;
    return remember(pointer, space);
}

static CUresult release(void *pointer, enum space space) {
    CUresult code = failure();
    if (code) return code;
    if (!pointer) return CUDA_SUCCESS;
    code = forget(pointer, space);
    if (!code) free(pointer);
    return code;
}

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) { return allocate(dptr, bytesize, DEVICE); }

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned element) {
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return allocate(dptr, *pitch * height, DEVICE);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned flags) { return allocate(dptr, bytesize, DEVICE); }

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    return allocate(dptr, bytesize, DEVICE);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream) {
    return allocate(dptr, bytesize, DEVICE);
}

/* One public function by another: by a call here, by a jump as the last act below (-O2 makes it one). */
CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    volatile CUresult result = cuMemAllocFromPoolAsync(dptr, bytesize, NULL, stream);
    return result;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream) {
    return cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, NULL, stream);
}

CUresult cuMemFree_v2(CUdeviceptr dptr) { return release((void *)dptr, DEVICE); }
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) { return release((void *)dptr, DEVICE); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) { return release((void *)dptr, DEVICE); }

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const void *prop, unsigned long long flags) {
    return allocate(handle, size, VMM);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return release((void *)handle, VMM); }

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) { return allocate(pp, bytesize, HOST); }
CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned flags) { return allocate(pp, bytesize, HOST); }
CUresult cuMemFreeHost(void *p) { return release(p, HOST); }

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned flags) {
    CUresult code = failure();
    return code ? code : remember(p, REGISTERED);
}
CUresult cuMemHostUnregister(void *p) {
    CUresult code = failure();
    return code ? code : forget(p, REGISTERED);
}

/* Contexts: places in an array. */
static char contexts[64];
static int created;

static CUresult create(CUcontext *pctx) {
    CUresult code = failure();
    if (!code) *pctx = (CUcontext)&contexts[created++ % 32];
    return code;
}
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev) { return create(pctx); }
CUresult cuCtxCreate_v3(CUcontext *pctx, void *params, int count, unsigned flags, CUdevice dev) { return create(pctx); }
CUresult cuCtxCreate_v4(CUcontext *pctx, void *params, unsigned flags, CUdevice dev) { return create(pctx); }
CUresult cuCtxDestroy_v2(CUcontext ctx) { return failure(); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    *pctx = (CUcontext)&contexts[32 + dev % 32];
    return failure();
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return failure(); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return failure(); }

static CUresult spin(long ms) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 < ms);
    return failure();
}
static CUresult wait_for(void *what) {
    if (what == WAITS_FOR_EVER)
        for (;;) pause();
    long ms = (long)what;
    if (ms < 0) return spin(-ms);
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left)) {}
    return failure();
}
CUresult cuStreamSynchronize(CUstream stream) { return wait_for(stream); }
CUresult cuStreamSynchronize_ptsz(CUstream stream) { return wait_for(stream); }
CUresult cuEventSynchronize(CUevent event) { return wait_for(event); }
CUresult cuCtxSynchronize(void) { return wait_for(WAITS_MS(0)); }
CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    volatile CUresult result = cuCtxSynchronize();
    return result;
}

#define DOES_NOTHING { return CUDA_SUCCESS; }
COPY_(cuMemcpyHtoD_v2) DOES_NOTHING
COPY_(cuMemcpyHtoD_v2_ptds) DOES_NOTHING
COPY_ASYNC(cuMemcpyHtoDAsync_v2) DOES_NOTHING
COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz) DOES_NOTHING
COPY_(cuMemcpyDtoH_v2) DOES_NOTHING
COPY_(cuMemcpyDtoH_v2_ptds) DOES_NOTHING
COPY_ASYNC(cuMemcpyDtoHAsync_v2) DOES_NOTHING
COPY_ASYNC(cuMemcpyDtoHAsync_v2_ptsz) DOES_NOTHING
COPY_(cuMemcpyDtoD_v2) DOES_NOTHING
COPY_(cuMemcpyDtoD_v2_ptds) DOES_NOTHING
COPY_ASYNC(cuMemcpyDtoDAsync_v2) DOES_NOTHING
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz) DOES_NOTHING
COPY_(cuMemcpy) DOES_NOTHING
COPY_(cuMemcpy_ptds) DOES_NOTHING
COPY_ASYNC(cuMemcpyAsync) DOES_NOTHING
COPY_ASYNC(cuMemcpyAsync_ptsz) DOES_NOTHING
CUresult cuMemcpyPeer(PEERS) DOES_NOTHING
CUresult cuMemcpyPeer_ptds(PEERS) DOES_NOTHING
CUresult cuMemcpyPeerAsync(PEERS, CUstream stream) DOES_NOTHING
CUresult cuMemcpyPeerAsync_ptsz(PEERS, CUstream stream) DOES_NOTHING
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) DOES_NOTHING
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy) DOES_NOTHING
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy) DOES_NOTHING
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy) DOES_NOTHING
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy) DOES_NOTHING
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy) DOES_NOTHING
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy) DOES_NOTHING
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy) DOES_NOTHING
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) DOES_NOTHING
CUresult cuMemcpyBatchAsync_v2(BATCH) DOES_NOTHING
CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH) DOES_NOTHING
CUresult cuLaunchKernel(LAUNCH, void **extra) DOES_NOTHING
CUresult cuLaunchKernel_ptsz(LAUNCH, void **extra) DOES_NOTHING
CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra) DOES_NOTHING
CUresult cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra) DOES_NOTHING
CUresult cuLaunchCooperativeKernel(LAUNCH) DOES_NOTHING
CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH) DOES_NOTHING
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) DOES_NOTHING
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) DOES_NOTHING
