/* Opens the library that it is told, and calls cudaMalloc of it, whatever becomes of that. */
#include "steps.h"

#include <dlfcn.h>

int main(int count, char **arguments) {
    void *p = NULL, *library = dlopen(arguments[1], RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    cudaError_t (*allocate)(void **, size_t) = (cudaError_t (*)(void **, size_t))dlsym(library, "cudaMalloc");
    step("call");
    for (int i = 0; i < 3; i++) allocate(&p, 4096);
    step("end");
}
