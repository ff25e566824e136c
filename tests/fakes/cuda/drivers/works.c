/* An engine at work until it is killed: it takes, gives half of it back, copies, waits, and is refused; one thread waits for ever. */
#include "steps.h"

#include <pthread.h>
#include <unistd.h>

static void *hang(void *unused) {
    cuStreamSynchronize(WAITS_FOR_EVER);
    return unused;
}

int main(void) {
    CUdeviceptr kept, lent, none = 0;
    pthread_t thread;
    step("work");
    pthread_create(&thread, NULL, hang, NULL);
    for (;;) {
        MUST(cuMemAlloc_v2(&kept, 1 << 20));
        MUST(cuMemAlloc_v2(&lent, 1 << 20));
        MUST(cuMemFree_v2(lent));
        MUST(cuMemcpyHtoDAsync_v2(0, 0, 1 << 16, NULL));
        MUST(cuStreamSynchronize(WAITS_MS(20)));
        MUST_FAIL(cuMemAlloc_v2(&none, (size_t)1 << 41));
        usleep(200000);
    }
}
