/* Copies far apart, and one that is alone in its millisecond. */
#include "steps.h"

#include <time.h>

int main(void) {
    struct timespec apart = {0, 5000000};
    step("apart");
    for (int i = 1; i <= 10; i++) {
        MUST(cuMemcpyHtoD_v2(0, 0, i << 20));
        nanosleep(&apart, NULL);
    }
    step("together");
    for (int i = 0; i < 4; i++) MUST(cuMemcpyHtoD_v2(0, 0, 1 << 20));
    step("end");
}
