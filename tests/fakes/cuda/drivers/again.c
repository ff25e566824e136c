/* Allocates, and then executes itself: the process lives on, and its memory does not. */
#include "steps.h"

#include <unistd.h>

int main(int argc, char **argv) {
    CUcontext context;
    CUdeviceptr pointer;
    step(argc > 1 ? "allocate again" : "allocate");
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemAlloc_v2(&pointer, (argc > 1 ? 50 : 100) << 20));
    step(argc > 1 ? "end" : "execute");
    if (argc == 1) execl("/proc/self/exe", argv[0], "again", NULL);
    return argc == 1;
}
