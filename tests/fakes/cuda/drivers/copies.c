/* Copies in every direction, in every way: each function once, with a size of its own. */
#include "steps.h"

#define PLAIN(name, size) MUST(name(0, 0, size))
#define ASYNC(name, size) MUST(name(0, 0, size, NULL))

static CUDA_MEMCPY2D rectangle(int src, int dst, size_t width, size_t height) {
    CUDA_MEMCPY2D c = {.srcMemoryType = src, .dstMemoryType = dst, .WidthInBytes = width, .Height = height};
    return c;
}
static CUDA_MEMCPY3D box(int src, int dst, size_t width, size_t height, size_t depth) {
    CUDA_MEMCPY3D c = {.srcMemoryType = src, .dstMemoryType = dst, .WidthInBytes = width, .Height = height, .Depth = depth};
    return c;
}

int main(void) {
    step("plain");
    PLAIN(cuMemcpyHtoD_v2, 1); PLAIN(cuMemcpyHtoD_v2_ptds, 10); ASYNC(cuMemcpyHtoDAsync_v2, 100); ASYNC(cuMemcpyHtoDAsync_v2_ptsz, 1000);
    PLAIN(cuMemcpyDtoH_v2, 2); PLAIN(cuMemcpyDtoH_v2_ptds, 20); ASYNC(cuMemcpyDtoHAsync_v2, 200); ASYNC(cuMemcpyDtoHAsync_v2_ptsz, 2000);
    PLAIN(cuMemcpyDtoD_v2, 3); PLAIN(cuMemcpyDtoD_v2_ptds, 30); ASYNC(cuMemcpyDtoDAsync_v2, 300); ASYNC(cuMemcpyDtoDAsync_v2_ptsz, 3000);
    PLAIN(cuMemcpy, 4); PLAIN(cuMemcpy_ptds, 40); ASYNC(cuMemcpyAsync, 400); ASYNC(cuMemcpyAsync_ptsz, 4000);
    MUST(cuMemcpyPeer(0, NULL, 0, NULL, 5)); MUST(cuMemcpyPeer_ptds(0, NULL, 0, NULL, 50));
    MUST(cuMemcpyPeerAsync(0, NULL, 0, NULL, 500, NULL)); MUST(cuMemcpyPeerAsync_ptsz(0, NULL, 0, NULL, 5000, NULL));
    step("shapes");
    CUDA_MEMCPY2D c2 = rectangle(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY, 10, 3);
    MUST(cuMemcpy2D_v2(&c2)); MUST(cuMemcpy2D_v2_ptds(&c2));
    c2 = rectangle(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, 100, 3);
    MUST(cuMemcpy2DAsync_v2(&c2, NULL)); MUST(cuMemcpy2DAsync_v2_ptsz(&c2, NULL));
    c2 = rectangle(CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, 1000, 3);
    MUST(cuMemcpy2DUnaligned_v2(&c2)); MUST(cuMemcpy2DUnaligned_v2_ptds(&c2));
    c2 = rectangle(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST, 10000, 3); /* no device has a part in it */
    MUST(cuMemcpy2D_v2(&c2));
    CUDA_MEMCPY3D c3 = box(CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_DEVICE, 10, 3, 2);
    MUST(cuMemcpy3D_v2(&c3)); MUST(cuMemcpy3D_v2_ptds(&c3)); MUST(cuMemcpy3DAsync_v2(&c3, NULL)); MUST(cuMemcpy3DAsync_v2_ptsz(&c3, NULL));
    MUST(cuMemcpy3DPeer(&c3)); MUST(cuMemcpy3DPeer_ptds(&c3)); MUST(cuMemcpy3DPeerAsync(&c3, NULL)); MUST(cuMemcpy3DPeerAsync_ptsz(&c3, NULL));
    step("batches");
    static size_t sizes[300];
    for (int i = 0; i < 300; i++) sizes[i] = i + 1;
    MUST(cuMemcpyBatchAsync_v2(NULL, NULL, sizes, 1, NULL, NULL, 0, NULL));
    MUST(cuMemcpyBatchAsync_v2_ptsz(NULL, NULL, sizes, 100, NULL, NULL, 0, NULL));
    step("a long batch");
    MUST(cuMemcpyBatchAsync_v2(NULL, NULL, sizes, 300, NULL, NULL, 0, NULL));
    step("end");
}
