/* Where a GPU sits: CPUs, NUMA nodes, and how far it is to the others. */
#define _GNU_SOURCE
#include "standin.h"

#define BITS (8 * sizeof(unsigned long))

enum { INTERNAL = 0, SINGLE_SWITCH = 10, NODE = 40, SYSTEM_WIDE = 50 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, int *node)
{
    ENTER_DEVICE(nvmlDeviceGetNumaNodeId, device);
    REQUIRE_OUTPUT(node);
    /* NVML means the node that the GPU's own memory is, not the node that the GPU is near to. */
    REQUIRE(HAS(AIE_IS_NUMA_NODE) && view->gpu.numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    *node = view->gpu.numa_node;
    return NVML_SUCCESS;
}

static nvmlReturn_t put_bits(uint64_t bits, unsigned int words, unsigned long *set)
{
    REQUIRE_OUTPUT(set);
    REQUIRE(words > 0, NVML_ERROR_INSUFFICIENT_SIZE);
    memset(set, 0, words * sizeof *set);
    for (unsigned int bit = 0; bit < 64 && bit / BITS < words; bit++)
        if (bits >> bit & 1)
            set[bit / BITS] |= 1ul << bit % BITS;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    ENTER_DEVICE(nvmlDeviceGetCpuAffinity, device);
    return put_bits(view->gpu.cpu_affinity, words, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope)
{
    ENTER_DEVICE(nvmlDeviceGetCpuAffinityWithinScope, device);
    REQUIRE(scope < 2, NVML_ERROR_INVALID_ARGUMENT);
    return put_bits(view->gpu.cpu_affinity, words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryAffinity, device);
    REQUIRE(scope < 2, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(view->gpu.numa_node >= 0, NVML_ERROR_NOT_SUPPORTED);
    return put_bits(1ull << (view->gpu.numa_node & 63), words, set);
}

/* ---- between two GPUs ---- */

static unsigned int distance(const struct aie_gpu *one, const struct aie_gpu *other)
{
    if (one->topology_group == other->topology_group)
        return SINGLE_SWITCH;
    return one->numa_node == other->numa_node ? NODE : SYSTEM_WIDE;
}

/* The state of another GPU than the one that the call is about. */
static nvmlReturn_t copy_other(nvmlDevice_t device, uint32_t *slot, struct aie_gpu *gpu)
{
    int mig;
    nvmlReturn_t refused = door_peek(device, slot, &mig);
    REQUIRE(refused == NVML_SUCCESS, refused);
    REQUIRE(door_attached(*slot) >= 0 && mig < 0, NVML_ERROR_INVALID_ARGUMENT);
    door_copy_gpu(*slot, gpu);
    return gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other_device, unsigned int *level)
{
    static _Thread_local struct aie_gpu other;
    ENTER_DEVICE(nvmlDeviceGetTopologyCommonAncestor, device);
    REQUIRE_OUTPUT(level);
    uint32_t slot;
    nvmlReturn_t result = copy_other(other_device, &slot, &other);
    REQUIRE(result == NVML_SUCCESS, result);
    *level = slot == view->slot ? INTERNAL : distance(&view->gpu, &other);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count, nvmlDevice_t *devices)
{
    static _Thread_local struct aie_gpu other;
    ENTER_DEVICE(nvmlDeviceGetTopologyNearestGpus, device);
    REQUIRE_OUTPUT(count);
    uint32_t found = 0;
    for (uint32_t index = 0; index < door_count(); index++) {
        uint32_t slot;
        if (index == view->index || copy_other(door_handle(index, -1), &slot, &other) != NVML_SUCCESS)
            continue;
        if (distance(&view->gpu, &other) != level)
            continue;
        if (devices != NULL && found < *count)
            devices[found] = door_handle(index, -1);
        found++;
    }
    if (devices == NULL || found < *count)
        *count = found;
    return NVML_SUCCESS;
}

static int has_active_link(const struct aie_gpu *gpu)
{
    for (uint32_t link = 0; link < gpu->link_count && link < AIE_MAX_LINKS; link++)
        if (gpu->links[link].active)
            return 1;
    return 0;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other_device, unsigned int capability, unsigned int *status)
{
    static _Thread_local struct aie_gpu other;
    ENTER_DEVICE(nvmlDeviceGetP2PStatus, device);
    REQUIRE_OUTPUT(status);
    REQUIRE(capability < 5, NVML_ERROR_INVALID_ARGUMENT);
    uint32_t slot;
    nvmlReturn_t result = copy_other(other_device, &slot, &other);
    REQUIRE(result == NVML_SUCCESS, result);
    REQUIRE(slot != view->slot, NVML_ERROR_INVALID_ARGUMENT);
    *status = has_active_link(&view->gpu) && has_active_link(&other) ? P2P_OK : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
