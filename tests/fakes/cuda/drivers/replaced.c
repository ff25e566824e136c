/* What it loaded may be replaced before each step: an allocation with a copy, and the end of both. */
#include "steps.h"

int main(void) {
    CUdeviceptr weights;
    step("load");
    MUST(cuMemAlloc_v2(&weights, 100 << 20));
    MUST(cuMemcpyHtoDAsync_v2(weights, 0, 100 << 20, NULL));
    step("free");
    MUST(cuMemFree_v2(weights));
    step("end");
}
