/* It is refused memory, and ends at once. */
#include "steps.h"

int main(void) {
    CUdeviceptr kept, none = 0;
    MUST(cuMemAlloc_v2(&kept, 3 << 20));
    step("end");
    MUST(cuMemAlloc_v2(&kept, 5 << 20));
    MUST_FAIL(cuMemAlloc_v2(&none, (size_t)1 << 41));
}
