/* What of cuda.h the stand-ins and the driver programs need: the real layouts, and nothing else. */
#ifndef CUDA_STAND_IN_H
#define CUDA_STAND_IN_H
#include <setjmp.h>
#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef int cudaError_t;

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_ILLEGAL_ADDRESS 700

#define CU_MEMORYTYPE_HOST 1
#define CU_MEMORYTYPE_DEVICE 2
#define CU_MEMORYTYPE_ARRAY 3
#define CU_MEMORYTYPE_UNIFIED 4

typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray, *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray, *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef CUDA_MEMCPY3D CUDA_MEMCPY3D_PEER; /* contexts in place of what is reserved */

/* Only the stand-in has these two: the next call of the thread returns `code` and does nothing. */
void stand_in_fail_next(CUresult code);

/* The next call of the thread that allocates never returns: it jumps to where `place` was set. */
void stand_in_jump_next(jmp_buf *place);

/* A stream or event of the stand-in says how long to wait for it. */
#define WAITS_MS(ms) ((void *)(size_t)(ms))
#define WAITS_FOR_EVER ((void *)~(size_t)0)
/* As long, on a CPU. Of at least 2 ms: 1 would be WAITS_FOR_EVER. */
#define SPINS_MS(ms) ((void *)-(long)(ms))

CUresult cuInit(unsigned flags);
CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize);
CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned flags);
CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const void *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemFree_v2(CUdeviceptr dptr);
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream);
CUresult cuMemAllocHost_v2(void **pp, size_t bytesize);
CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned flags);
CUresult cuMemFreeHost(void *p);
CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned flags);
CUresult cuMemHostUnregister(void *p);
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev);
CUresult cuCtxCreate_v3(CUcontext *pctx, void *params, int count, unsigned flags, CUdevice dev);
CUresult cuCtxCreate_v4(CUcontext *pctx, void *params, unsigned flags, CUdevice dev);
CUresult cuCtxDestroy_v2(CUcontext ctx);
CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext ctx);

#define COPY_(name) CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
#define COPY_ASYNC(name) CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
COPY_(cuMemcpyHtoD_v2); COPY_(cuMemcpyHtoD_v2_ptds); COPY_ASYNC(cuMemcpyHtoDAsync_v2); COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz);
COPY_(cuMemcpyDtoH_v2); COPY_(cuMemcpyDtoH_v2_ptds); COPY_ASYNC(cuMemcpyDtoHAsync_v2); COPY_ASYNC(cuMemcpyDtoHAsync_v2_ptsz);
COPY_(cuMemcpyDtoD_v2); COPY_(cuMemcpyDtoD_v2_ptds); COPY_ASYNC(cuMemcpyDtoDAsync_v2); COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz);
COPY_(cuMemcpy); COPY_(cuMemcpy_ptds); COPY_ASYNC(cuMemcpyAsync); COPY_ASYNC(cuMemcpyAsync_ptsz);
#define PEERS CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes
CUresult cuMemcpyPeer(PEERS);
CUresult cuMemcpyPeer_ptds(PEERS);
CUresult cuMemcpyPeerAsync(PEERS, CUstream stream);
CUresult cuMemcpyPeerAsync_ptsz(PEERS, CUstream stream);
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy, CUstream stream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy);
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
#define BATCH CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attr_count, CUstream stream
CUresult cuMemcpyBatchAsync_v2(BATCH);
CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH);

#define LAUNCH CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params
CUresult cuLaunchKernel(LAUNCH, void **extra);
CUresult cuLaunchKernel_ptsz(LAUNCH, void **extra);
CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra);
CUresult cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra);
CUresult cuLaunchCooperativeKernel(LAUNCH);
CUresult cuLaunchCooperativeKernel_ptsz(LAUNCH);
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);

cudaError_t cudaMalloc(void **p, size_t size);
cudaError_t cudaMallocAsync(void **p, size_t size, CUstream stream);
cudaError_t cudaMallocManaged(void **p, size_t size, unsigned flags);
cudaError_t cudaMallocHost(void **p, size_t size);
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags);
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height);
cudaError_t cudaFree(void *p);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
#endif
