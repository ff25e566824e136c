/* Allocations of every kind, some of which are freed. */
#include "steps.h"

int main(void) {
    CUdeviceptr device[3], managed, async[2], pitched;
    CUmemGenericAllocationHandle handle[2];
    void *host[2];
    size_t pitch;
    static char page[4096];

    step("device");
    MUST(cuMemAlloc_v2(&device[0], 1000));
    MUST(cuMemAlloc_v2(&device[1], 1 << 20));
    MUST(cuMemAlloc_v2(&device[2], 1 << 20));
    MUST(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 10, 4)); /* a pitch of 1024 */
    step("others");
    MUST(cuMemAllocManaged(&managed, 5000, 1));
    MUST(cuMemAllocAsync(&async[0], 6000, NULL));
    MUST(cuMemAllocAsync_ptsz(&async[1], 6001, NULL));
    MUST(cuMemCreate(&handle[0], 2 << 20, NULL, 0));
    MUST(cuMemCreate(&handle[1], 4 << 20, NULL, 0));
    MUST(cuMemAllocHost_v2(&host[0], 7000));
    MUST(cuMemHostAlloc(&host[1], 8000, 0));
    MUST(cuMemHostRegister_v2(page, sizeof(page), 0));
    step("freed");
    MUST(cuMemFree_v2(device[1]));
    MUST(cuMemFree_v2(managed));
    MUST(cuMemFreeAsync(async[0], NULL));
    MUST(cuMemRelease(handle[1]));
    MUST(cuMemFreeHost(host[0]));
    MUST(cuMemHostUnregister(page));
    step("all freed");
    MUST(cuMemFree_v2(device[0]));
    MUST(cuMemFree_v2(device[2]));
    MUST(cuMemFree_v2(pitched));
    MUST(cuMemFreeAsync_ptsz(async[1], NULL));
    MUST(cuMemRelease(handle[0]));
    MUST(cuMemFreeHost(host[1]));
    step("end");
}
