/* Eight threads that allocate at once and hand what they have to their neighbour, who frees half of it: addresses go round. */
#include "steps.h"

#include <pthread.h>

#define THREADS 8
#define ROUNDS 500

static CUdeviceptr given[THREADS][ROUNDS];
static pthread_barrier_t barrier;

static void *work(void *argument) {
    size_t me = (size_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr passing;
        MUST(cuMemAlloc_v2(&given[me][round], 1000));
        MUST(cuMemAlloc_v2(&passing, 1000));
        MUST(cuMemFree_v2(passing));
    }
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < ROUNDS; round += 2) MUST(cuMemFree_v2(given[(me + 1) % THREADS][round]));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    step("work");
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    step("end");
}
