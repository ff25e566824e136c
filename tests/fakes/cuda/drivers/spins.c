/* Synchronisations of two seconds: one spins, as CUDA's libraries do by default, one sleeps. The steps after them say how many
 * milliseconds of CPU time they took. */
#include "steps.h"

#include <time.h>

static long cpu_ms(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

static void told(CUstream how) {
    char took[32];
    long before = cpu_ms();
    MUST(cuStreamSynchronize(how));
    snprintf(took, sizeof(took), "%ld", cpu_ms() - before);
    step(took);
}

int main(void) {
    step("spin");
    told(SPINS_MS(2000));
    told(WAITS_MS(2000));
}
