/* A shared library that asks for memory, as an engine's extension does. */
#include "steps.h"

void plugin_allocates(void **p, size_t size) { MUST(cudaMalloc(p, size)); }
void plugin_asks_the_driver(CUdeviceptr *p, size_t size) { MUST(cuMemAlloc_v2(p, size)); }
