/* A driver program tells each step before it does it, and waits for a line. At the end of input it ends. */
#include "cuda_stand_in.h"

#include <stdio.h>
#include <stdlib.h>

static void step(const char *name) {
    char line[16];
    printf("%s\n", name);
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin)) exit(0);
}

/* For calls that must succeed: a test must not count on what did not happen. */
#define MUST(call) do { if ((call) != 0) { fprintf(stderr, "%s failed\n", #call); exit(3); } } while (0)
#define MUST_FAIL(call) do { if ((call) == 0) { fprintf(stderr, "%s succeeded\n", #call); exit(3); } } while (0)
