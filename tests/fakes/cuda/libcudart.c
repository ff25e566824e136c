/* A stand-in for libcudart.so.12: as much of the runtime as asks the driver for memory. A context is retained at the first call. */
#include "cuda_stand_in.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void begin(void) {
    CUcontext context;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
}

/* Not a jump: the real runtime translates the driver's result. */
static cudaError_t as_error(volatile CUresult result) { return result; }

cudaError_t cudaMalloc(void **p, size_t size) {
    pthread_once(&once, begin);
    *p = NULL;
    return size ? as_error(cuMemAlloc_v2((CUdeviceptr *)p, size)) : 0; /* nothing is asked from the driver for nothing */
}
cudaError_t cudaMallocAsync(void **p, size_t size, CUstream stream) {
    pthread_once(&once, begin);
    return as_error(cuMemAllocAsync((CUdeviceptr *)p, size, stream));
}
cudaError_t cudaMallocManaged(void **p, size_t size, unsigned flags) {
    pthread_once(&once, begin);
    return as_error(cuMemAllocManaged((CUdeviceptr *)p, size, flags));
}
cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) {
    pthread_once(&once, begin);
    return as_error(cuMemHostAlloc(p, size, flags));
}
cudaError_t cudaMallocHost(void **p, size_t size) { return as_error(cudaHostAlloc(p, size, 0)); }
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
    pthread_once(&once, begin);
    return as_error(cuMemAllocPitch_v2((CUdeviceptr *)p, pitch, width, height, 4));
}
cudaError_t cudaFree(void *p) {
    pthread_once(&once, begin);
    return as_error(cuMemFree_v2((CUdeviceptr)p));
}
cudaError_t cudaFreeHost(void *p) { return as_error(cuMemFreeHost(p)); }
cudaError_t cudaDeviceSynchronize(void) { return as_error(cuCtxSynchronize()); }
cudaError_t cudaDeviceReset(void) { return as_error(cuDevicePrimaryCtxReset_v2(0)); }
