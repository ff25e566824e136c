/* The system as a whole, and how handles are found: by index, UUID, serial number and bus id. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>
#include <fcntl.h>

static const struct { nvmlReturn_t code; const char *text; } errors[] = {
    { NVML_SUCCESS, "Success" },
    { NVML_ERROR_UNINITIALIZED, "Uninitialized" },
    { NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument" },
    { NVML_ERROR_NOT_SUPPORTED, "Not Supported" },
    { NVML_ERROR_NO_PERMISSION, "Insufficient Permissions" },
    { NVML_ERROR_NOT_FOUND, "Not Found" },
    { NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size" },
    { NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded" },
    { NVML_ERROR_TIMEOUT, "Timeout" },
    { NVML_ERROR_GPU_IS_LOST, "GPU is lost" },
    { 18, "Driver/library version mismatch" },
    { NVML_ERROR_MEMORY, "Insufficient Memory" },
    { NVML_ERROR_NO_DATA, "No data" },
    { NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch" },
};

const char *nvmlErrorString(nvmlReturn_t result)
{
    for (size_t row = 0; row < ROWS(errors); row++)
        if (errors[row].code == result)
            return errors[row].text;
    return "Unknown Error";
}

static nvmlReturn_t put_config_text(size_t offset, char *to, unsigned int size)
{
    char text[80];
    door_copy_config(offset, text, sizeof text);
    return put_text(text, to, size);
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *to, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetDriverVersion);
    return put_config_text(offsetof(struct aie_config, driver_version), to, size);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetNVMLVersion);
    return put_config_text(offsetof(struct aie_config, nvml_version), to, size);
}

static nvmlReturn_t put_cuda_version(int *version)
{
    REQUIRE_OUTPUT(version);
    uint32_t value;
    door_copy_config(offsetof(struct aie_config, cuda_version), &value, sizeof value);
    *version = (int)value;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion);
    return put_cuda_version(version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion_v2);
    return put_cuda_version(version);
}

/* The driver knows the command's name; the kernel of this host does too. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *to, unsigned int size)
{
    ENTER_SYSTEM(nvmlSystemGetProcessName);
    REQUIRE_OUTPUT(to);
    REQUIRE(size > 0, NVML_ERROR_INVALID_ARGUMENT);
    char path[40];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(descriptor >= 0, NVML_ERROR_NOT_FOUND);
    ssize_t length = read(descriptor, to, size - 1);
    close(descriptor);
    to[length > 0 ? length : 0] = '\0';
    return NVML_SUCCESS;
}

static nvmlReturn_t put_count(unsigned int *count)
{
    REQUIRE_OUTPUT(count);
    *count = door_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    ENTER_SYSTEM(nvmlDeviceGetCount);
    return put_count(count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER_SYSTEM(nvmlDeviceGetCount_v2);
    return put_count(count);
}

/* ---- handles ---- */

static nvmlReturn_t put_handle_by_index(unsigned int index, nvmlDevice_t *device)
{
    static _Thread_local struct aie_gpu gpu;
    REQUIRE_OUTPUT(device);
    REQUIRE(index < door_count(), NVML_ERROR_INVALID_ARGUMENT);
    *device = door_handle(index, -1);
    uint32_t slot;
    int mig;
    door_peek(*device, &slot, &mig);
    door_copy_gpu(slot, &gpu);
    return gpu.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    ENTER_SYSTEM(nvmlDeviceGetHandleByIndex);
    return put_handle_by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER_SYSTEM(nvmlDeviceGetHandleByIndex_v2);
    return put_handle_by_index(index, device);
}

/* Does this GPU (or, where it returns >= 0, this instance of it) answer to the key? */
typedef int matcher(const struct aie_gpu *gpu, const char *key);
enum { NO_MATCH = -2, THE_GPU = -1 };

static int match_uuid(const struct aie_gpu *gpu, const char *key)
{
    if (strcmp(gpu->uuid, key) == 0)
        return THE_GPU;
    for (int mig = 0; mig < AIE_MAX_MIG; mig++)
        if (gpu->mig_mode && gpu->mig[mig].present && strcmp(gpu->mig[mig].uuid, key) == 0)
            return mig;
    return NO_MATCH;
}

static int match_serial(const struct aie_gpu *gpu, const char *key) { return strcmp(gpu->serial, key) == 0 ? THE_GPU : NO_MATCH; }

static int match_bus_id(const struct aie_gpu *gpu, const char *key)
{
    unsigned int domain, bus, device;
    if (sscanf(key, "%x:%x:%x", &domain, &bus, &device) != 3)
        return NO_MATCH;
    return domain == gpu->pci_domain && bus == gpu->pci_bus && device == gpu->pci_device ? THE_GPU : NO_MATCH;
}

static nvmlReturn_t put_handle_by(matcher *matches, const char *key, nvmlDevice_t *device)
{
    static _Thread_local struct aie_gpu gpu;
    REQUIRE_OUTPUT(key);
    REQUIRE_OUTPUT(device);
    for (uint32_t index = 0; index < door_count(); index++) {
        uint32_t slot;
        int mig;
        door_peek(door_handle(index, -1), &slot, &mig);
        door_copy_gpu(slot, &gpu);
        int found = matches(&gpu, key);
        if (found == NO_MATCH)
            continue;
        *device = door_handle(index, found);
        return gpu.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

#define HANDLE_BY(name, matches)                                     \
    nvmlReturn_t name(const char *key, nvmlDevice_t *device)         \
    {                                                                \
        ENTER_SYSTEM(name);                                          \
        return put_handle_by(matches, key, device);                  \
    }

HANDLE_BY(nvmlDeviceGetHandleByUUID, match_uuid)
HANDLE_BY(nvmlDeviceGetHandleBySerial, match_serial)
HANDLE_BY(nvmlDeviceGetHandleByPciBusId, match_bus_id)
HANDLE_BY(nvmlDeviceGetHandleByPciBusId_v2, match_bus_id)

/* ---- PCI identity ---- */

#define BUS_ID "%08X:%02X:%02X.0"

/* As it was before domains of more than 16 bits. */
static void put_legacy_bus_id(const struct aie_gpu *gpu, char *to, size_t size)
{
    snprintf(to, size, "%04X:%02X:%02X.0", gpu->pci_domain & 0xFFFF, gpu->pci_bus & 0xFF, gpu->pci_device & 0xFF);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3, device);
    REQUIRE_OUTPUT(pci);
    const struct aie_gpu *gpu = &view->gpu;
    memset(pci, 0, sizeof *pci);
    put_legacy_bus_id(gpu, pci->busIdLegacy, sizeof pci->busIdLegacy);
    snprintf(pci->busId, sizeof pci->busId, BUS_ID, gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
    pci->domain = gpu->pci_domain;
    pci->bus = gpu->pci_bus;
    pci->device = gpu->pci_device;
    pci->pciDeviceId = gpu->pci_device_id;
    pci->pciSubSystemId = gpu->pci_subsystem_id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v2, device);
    REQUIRE_OUTPUT(pci);
    const struct aie_gpu *gpu = &view->gpu;
    memset(pci, 0, sizeof *pci);
    put_legacy_bus_id(gpu, pci->busId, sizeof pci->busId);
    pci->domain = gpu->pci_domain;
    pci->bus = gpu->pci_bus;
    pci->device = gpu->pci_device;
    pci->pciDeviceId = gpu->pci_device_id;
    pci->pciSubSystemId = gpu->pci_subsystem_id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(nvmlDeviceGetCudaComputeCapability, device);
    REQUIRE_OUTPUT(major);
    REQUIRE_OUTPUT(minor);
    *major = (int)view->gpu.compute_major;
    *minor = (int)view->gpu.compute_minor;
    return NVML_SUCCESS;
}
