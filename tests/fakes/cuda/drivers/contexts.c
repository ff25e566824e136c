/* Contexts that come and go, with memory in them. */
#include "steps.h"

int main(void) {
    CUcontext primary, own, third;
    CUdeviceptr p;
    CUmemGenericAllocationHandle handle;
    step("create");
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxCreate_v4(&own, NULL, 0, 0));
    MUST(cuCtxCreate_v2(&third, 0, 0));
    MUST(cuMemAlloc_v2(&p, 1000));
    MUST(cuMemCreate(&handle, 2 << 20, NULL, 0));
    step("all but one");
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxDestroy_v2(third));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    step("the last");
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    step("again");
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuMemAlloc_v2(&p, 3000));
    MUST(cuMemAlloc_v2(&p, 4000));
    step("reset");
    MUST(cuDevicePrimaryCtxReset_v2(0));
    step("end");
}
