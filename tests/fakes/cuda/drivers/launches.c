/* Launches, a known number of times by each function. */
#include "steps.h"

#define GRID NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL

int main(void) {
    step("launch");
    for (int i = 0; i < 50; i++) MUST(cuLaunchKernel(GRID, NULL));
    for (int i = 0; i < 5; i++) MUST(cuLaunchKernel_ptsz(GRID, NULL));
    for (int i = 0; i < 7; i++) MUST(cuLaunchKernelEx(NULL, NULL, NULL, NULL));
    for (int i = 0; i < 4; i++) MUST(cuLaunchKernelEx_ptsz(NULL, NULL, NULL, NULL));
    for (int i = 0; i < 3; i++) MUST(cuLaunchCooperativeKernel(GRID));
    for (int i = 0; i < 2; i++) MUST(cuLaunchCooperativeKernel_ptsz(GRID));
    for (int i = 0; i < 9; i++) MUST(cuGraphLaunch(NULL, NULL));
    MUST(cuGraphLaunch_ptsz(NULL, NULL));
    step("end");
}
