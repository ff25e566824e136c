/* A program and a library that both allocate: who asked is told apart. */
#include "steps.h"

void plugin_allocates(void **p, size_t size);
void plugin_asks_the_driver(CUdeviceptr *p, size_t size);

int main(void) {
    void *p;
    CUdeviceptr q;
    step("allocate");
    MUST(cudaMalloc(&p, 100));
    plugin_allocates(&p, 2000);
    MUST(cudaMalloc(&p, 0)); /* the runtime is asked, and does not ask the driver: the next one who does is another */
    plugin_asks_the_driver(&q, 30000);
    step("end");
}
