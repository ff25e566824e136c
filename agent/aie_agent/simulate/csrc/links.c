/* PCIe and NVLink. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>

/* ---- PCIe ---- */

static const unsigned int lane_mbit_per_s[] = { 0, 2500, 5000, 8000, 16000, 32000, 64000 };

static unsigned int lane_speed(uint64_t generation) { return generation < ROWS(lane_mbit_per_s) ? lane_mbit_per_s[generation] : 0; }

nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *mbit_per_s)
{
    ENTER_DEVICE(nvmlDeviceGetPcieSpeed, device);
    REQUIRE_OUTPUT(mbit_per_s);
    *mbit_per_s = lane_speed(READ(pcie_generation));
    return NVML_SUCCESS;
}

/* An enumeration, not a speed: 1 is 2500 Mbit/s and so on, which is the generation's number. */
nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *speed)
{
    ENTER_DEVICE(nvmlDeviceGetPcieLinkMaxSpeed, device);
    REQUIRE_OUTPUT(speed);
    *speed = view->gpu.pcie_max_generation;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int direction, unsigned int *kb_per_s)
{
    ENTER_DEVICE(nvmlDeviceGetPcieThroughput, device);
    REQUIRE_OUTPUT(kb_per_s);
    REQUIRE(direction < 2, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(!view->gpu.mig_mode, NVML_ERROR_NOT_SUPPORTED);
    *kb_per_s = (unsigned int)(direction == 0 ? READ(pcie_tx_kb_per_s) : READ(pcie_rx_kb_per_s));
    return NVML_SUCCESS;
}

/* ---- NVLink ---- */

/* The link with this number, or why there is none. */
static nvmlReturn_t find_link(const struct view *view, unsigned int number, const struct aie_link **link)
{
    REQUIRE(view->gpu.link_count > 0, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(number < view->gpu.link_count && number < AIE_MAX_LINKS, NVML_ERROR_INVALID_ARGUMENT);
    *link = &view->gpu.links[number];
    return NVML_SUCCESS;
}

#define LINK_NUMBER(name, expression)                                                       \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int number, unsigned int *to)           \
    {                                                                                       \
        ENTER_DEVICE(name, device);                                                         \
        REQUIRE_OUTPUT(to);                                                                 \
        const struct aie_link *link;                                                        \
        nvmlReturn_t missing = find_link(view, number, &link);                              \
        REQUIRE(missing == NVML_SUCCESS, missing);                                          \
        (void)link;                                                                         \
        *to = (expression);                                                                 \
        return NVML_SUCCESS;                                                                \
    }

LINK_NUMBER(nvmlDeviceGetNvLinkState, link->active)
LINK_NUMBER(nvmlDeviceGetNvLinkVersion, view->gpu.link_version)
LINK_NUMBER(nvmlDeviceGetNvLinkRemoteDeviceType, link->remote_type)

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number, unsigned int capability, unsigned int *to)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkCapability, device);
    REQUIRE_OUTPUT(to);
    const struct aie_link *link;
    nvmlReturn_t missing = find_link(view, number, &link);
    REQUIRE(missing == NVML_SUCCESS, missing);
    REQUIRE(capability < 6, NVML_ERROR_INVALID_ARGUMENT);
    *to = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int number, unsigned int counter,
                                             unsigned long long *errors)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkErrorCounter, device);
    REQUIRE_OUTPUT(errors);
    const struct aie_link *link;
    nvmlReturn_t missing = find_link(view, number, &link);
    REQUIRE(missing == NVML_SUCCESS, missing);
    REQUIRE(!HAS(AIE_HAS_NVLINK5), NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(link->active, NVML_ERROR_INVALID_ARGUMENT);
    const uint64_t counters[] = { link->replay_errors, link->recovery_errors, link->crc_flit_errors, link->crc_data_errors,
                                  link->ecc_errors };
    REQUIRE(counter < ROWS(counters), NVML_ERROR_INVALID_ARGUMENT);
    *errors = counters[counter];
    return NVML_SUCCESS;
}

static nvmlReturn_t put_remote(const struct view *view, unsigned int number, nvmlPciInfo_t *pci)
{
    REQUIRE_OUTPUT(pci);
    const struct aie_link *link;
    nvmlReturn_t missing = find_link(view, number, &link);
    REQUIRE(missing == NVML_SUCCESS, missing);
    memset(pci, 0, sizeof *pci);
    pci->bus = link->remote_bus;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", 0u, link->remote_bus & 0xFF, 0u);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", 0u, link->remote_bus & 0xFF, 0u);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkRemotePciInfo, device);
    return put_remote(view, number, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int number, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkRemotePciInfo_v2, device);
    return put_remote(view, number, pci);
}
