/* Calls that fail, and frees of what was allocated before anybody watched. */
#include "steps.h"

int main(void) {
    CUdeviceptr early[2], kept, none = 0;
    MUST(cuMemAlloc_v2(&early[0], 100));
    MUST(cuMemAlloc_v2(&early[1], 200));
    step("allocations fail");
    for (int i = 0; i < 3; i++) MUST_FAIL(cuMemAlloc_v2(&none, (size_t)1 << 41));
    stand_in_fail_next(CUDA_ERROR_ILLEGAL_ADDRESS);
    MUST_FAIL(cuMemAllocManaged(&none, 100, 1));
    step("frees fail");
    MUST(cuMemAlloc_v2(&kept, 3000));
    stand_in_fail_next(CUDA_ERROR_ILLEGAL_ADDRESS);
    MUST_FAIL(cuMemFree_v2(kept));
    MUST_FAIL(cuMemFree_v2(kept + 64));
    step("then one succeeds");
    MUST(cuMemFree_v2(kept));
    step("unknown frees");
    MUST(cuMemFree_v2(early[0]));
    MUST(cuMemFree_v2(early[1]));
    MUST(cuMemFree_v2(0)); /* of nothing */
    step("end");
}
