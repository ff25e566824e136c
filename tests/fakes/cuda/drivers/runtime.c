/* Allocations through CUDA's runtime, and one that goes to the driver directly, deeper in the stack. */
#include "steps.h"

static __attribute__((noinline)) void directly(CUdeviceptr *p) {
    volatile char deeper[512];
    deeper[0] = 0;
    MUST(cuMemAlloc_v2(p, 300 + deeper[0]));
}

int main(void) {
    void *p[7];
    CUdeviceptr direct;
    size_t pitch;
    MUST(cudaMalloc(&p[0], 1)); /* the runtime begins */
    step("runtime");
    MUST(cudaMalloc(&p[1], 100));
    MUST(cudaMallocAsync(&p[2], 100, NULL));
    MUST(cudaMallocManaged(&p[3], 100, 1));
    MUST(cudaMallocHost(&p[4], 100));
    MUST(cudaHostAlloc(&p[5], 100, 0));
    MUST(cudaMallocPitch(&p[6], &pitch, 100, 2));
    step("directly");
    directly(&direct);
    step("end");
}
