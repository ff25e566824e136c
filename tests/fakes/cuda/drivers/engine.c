/* What an engine does: it allocates through the runtime, copies, launches, waits, and at last hangs. */
#include "steps.h"

#include <pthread.h>

static void *hang(void *unused) {
    cuStreamSynchronize(WAITS_FOR_EVER);
    return unused;
}

int main(void) {
    void *weights, *cache;
    pthread_t thread;
    step("load");
    MUST(cudaMalloc(&weights, 100 << 20));
    MUST(cudaMalloc(&cache, 50 << 20));
    MUST(cuMemcpyHtoDAsync_v2(0, 0, 100 << 20, NULL));
    step("launch");
    for (int i = 0; i < 70; i++) MUST(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    for (int i = 0; i < 11; i++) MUST(cuGraphLaunch(NULL, NULL));
    step("hang");
    pthread_create(&thread, NULL, hang, NULL);
    step("end");
}
