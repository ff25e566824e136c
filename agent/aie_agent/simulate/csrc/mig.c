/* GPUs that are cut into instances. */
#define _GNU_SOURCE
#include "standin.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_DEVICE(nvmlDeviceGetMigMode, device);
    REQUIRE_OUTPUT(current);
    REQUIRE_OUTPUT(pending);
    REQUIRE(HAS(AIE_HAS_MIG), NVML_ERROR_NOT_SUPPORTED);
    *current = view->gpu.mig_mode;
    *pending = view->gpu.mig_pending_mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER_DEVICE(nvmlDeviceGetMaxMigDeviceCount, device);
    REQUIRE_OUTPUT(count);
    *count = HAS(AIE_HAS_MIG) ? view->gpu.mig_max_devices : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int number, nvmlDevice_t *instance)
{
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, device);
    REQUIRE_OUTPUT(instance);
    REQUIRE(HAS(AIE_HAS_MIG), NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(number < view->gpu.mig_max_devices && number < AIE_MAX_MIG, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(view->gpu.mig_mode && view->gpu.mig[number].present, NVML_ERROR_NOT_FOUND);
    *instance = door_handle_of_slot(view->slot, (int)number);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device)
{
    ENTER_DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, instance);
    REQUIRE_OUTPUT(device);
    REQUIRE(view->mig != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *device = door_handle_of_slot(view->slot, -1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_instance)
{
    ENTER_DEVICE(nvmlDeviceIsMigDeviceHandle, device);
    REQUIRE_OUTPUT(is_instance);
    *is_instance = view->mig != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(nvmlDeviceGetGpuInstanceId, device);
    REQUIRE_OUTPUT(id);
    REQUIRE(view->mig != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *id = view->mig->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(nvmlDeviceGetComputeInstanceId, device);
    REQUIRE_OUTPUT(id);
    REQUIRE(view->mig != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *id = view->mig->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE(nvmlDeviceGetAttributes_v2, device);
    REQUIRE_OUTPUT(attributes);
    REQUIRE(view->mig != NULL, NVML_ERROR_NOT_SUPPORTED);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = view->mig->multiprocessors,
        .sharedCopyEngineCount = view->mig->copy_engines,
        .sharedDecoderCount = view->mig->decoders,
        .gpuInstanceSliceCount = view->mig->gpu_slices,
        .computeInstanceSliceCount = view->mig->compute_slices,
        .memorySizeMB = view->mig->memory_total_bytes >> 20,
    };
    return NVML_SUCCESS;
}
