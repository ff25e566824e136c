/* Synchronisations that take a known time, that fail, and one that never returns. */
#include "steps.h"

#include <pthread.h>

static void *hang(void *unused) {
    cuStreamSynchronize(WAITS_FOR_EVER);
    return unused;
}

int main(void) {
    pthread_t thread;
    step("wait");
    for (int i = 0; i < 3; i++) MUST(cuStreamSynchronize(WAITS_MS(20)));
    MUST(cuStreamSynchronize_ptsz(WAITS_MS(20)));
    MUST(cuEventSynchronize(WAITS_MS(30)));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSynchronize_v2(NULL)); /* calls the other one */
    step("fail");
    stand_in_fail_next(CUDA_ERROR_ILLEGAL_ADDRESS);
    MUST_FAIL(cuCtxSynchronize());
    step("hang");
    pthread_create(&thread, NULL, hang, NULL);
    step("cancel"); /* the thread ends inside the call, and never returns from it */
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    step("end");
}
