/* A call that never returns, because its thread jumps out of it; then others from the same function. */
#include "steps.h"

int main(void) {
    jmp_buf place;
    CUdeviceptr p;
    step("jump");
    if (!setjmp(place)) {
        stand_in_jump_next(&place);
        cuMemAlloc_v2(&p, 77777);
    }
    step("go on");
    MUST(cuMemAlloc_v2(&p, 1000));
    MUST(cuMemAlloc_v2(&p, 2000));
    MUST(cuMemFree_v2(p));
    step("end");
}
