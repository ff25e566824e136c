/* As many allocations as it is told, one after the other; then their frees. */
#include "steps.h"

int main(int count, char **arguments) {
    int many = atoi(arguments[1]);
    CUdeviceptr *p = calloc(many, sizeof(*p));
    step("allocate");
    for (int i = 0; i < many; i++) MUST(cuMemAlloc_v2(&p[i], 64));
    step("free");
    for (int i = 0; i < many; i++) MUST(cuMemFree_v2(p[i]));
    step("end");
}
