/* Ten allocations, each of a size class of its own; then their frees. */
#include "steps.h"

int main(void) {
    CUdeviceptr p[10];
    step("allocate");
    for (int i = 0; i < 10; i++) MUST(cuMemAlloc_v2(&p[i], 1000 << i));
    step("free");
    for (int i = 0; i < 10; i++) MUST(cuMemFree_v2(p[i]));
    step("end");
}
