/* What a GPU is and how it is now: one row a function wherever the functions differ only in the value. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- one text ---- */

#define DEVICE_TEXT(name, expression)                                            \
    nvmlReturn_t name(nvmlDevice_t device, char *to, unsigned int size)          \
    {                                                                            \
        ENTER_DEVICE(name, device);                                              \
        return put_text((expression), to, size);                                 \
    }

static const char *name_of(const struct view *view)
{
    static _Thread_local char text[96 + 40];
    if (view->mig == NULL)
        return view->gpu.name;
    snprintf(text, sizeof text, "%.60s MIG %.30s", view->gpu.name, view->mig->profile);
    return text;
}

DEVICE_TEXT(nvmlDeviceGetName, name_of(view))
DEVICE_TEXT(nvmlDeviceGetUUID, view->mig ? view->mig->uuid : view->gpu.uuid)
DEVICE_TEXT(nvmlDeviceGetSerial, view->gpu.serial)
DEVICE_TEXT(nvmlDeviceGetVbiosVersion, view->gpu.vbios)
DEVICE_TEXT(nvmlDeviceGetBoardPartNumber, view->gpu.part_number)

/* ---- one number: DEVICE_NUMBER(function, type, the product has it when, value) ---- */

#define DEVICE_NUMBER(name, type, supported, expression)                         \
    nvmlReturn_t name(nvmlDevice_t device, type *to)                             \
    {                                                                            \
        ENTER_DEVICE(name, device);                                              \
        REQUIRE_OUTPUT(to);                                                      \
        REQUIRE(supported, NVML_ERROR_NOT_SUPPORTED);                            \
        *to = (type)(expression);                                                \
        return NVML_SUCCESS;                                                     \
    }

#define ALWAYS 1

typedef unsigned int number;
typedef unsigned long long wide;

DEVICE_NUMBER(nvmlDeviceGetIndex, number, ALWAYS, view->mig ? (number)(view->mig - view->gpu.mig) : view->index)
DEVICE_NUMBER(nvmlDeviceGetMinorNumber, number, ALWAYS, view->gpu.minor_number)
DEVICE_NUMBER(nvmlDeviceGetBrand, number, ALWAYS, view->gpu.brand)
DEVICE_NUMBER(nvmlDeviceGetArchitecture, number, ALWAYS, view->gpu.architecture)
DEVICE_NUMBER(nvmlDeviceGetNumGpuCores, number, ALWAYS, view->gpu.cores)
DEVICE_NUMBER(nvmlDeviceGetMemoryBusWidth, number, HAS(AIE_HAS_MEMORY), view->gpu.memory_bus_bits)
DEVICE_NUMBER(nvmlDeviceGetPowerUsage, number, ALWAYS, READ(power_mw))
DEVICE_NUMBER(nvmlDeviceGetPowerManagementMode, number, HAS(AIE_HAS_POWER_LIMIT), 1)
DEVICE_NUMBER(nvmlDeviceGetPowerManagementLimit, number, HAS(AIE_HAS_POWER_LIMIT), view->gpu.power_limit_mw)
DEVICE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, number, HAS(AIE_HAS_POWER_LIMIT), view->gpu.power_limit_mw)
DEVICE_NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, number, HAS(AIE_HAS_POWER_LIMIT), view->gpu.power_default_mw)
DEVICE_NUMBER(nvmlDeviceGetTotalEnergyConsumption, wide, HAS(AIE_HAS_ENERGY), model_counters(view)[C_energy_uj] / 1000)
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, wide, ALWAYS, READ(clock_reasons))
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, wide, ALWAYS, READ(clock_reasons))
DEVICE_NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, wide, ALWAYS, view->gpu.clock_reasons_supported)
DEVICE_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, wide, ALWAYS, view->gpu.clock_reasons_supported)
DEVICE_NUMBER(nvmlDeviceGetPerformanceState, number, ALWAYS, READ(performance_state))
DEVICE_NUMBER(nvmlDeviceGetPowerState, number, ALWAYS, READ(performance_state))
DEVICE_NUMBER(nvmlDeviceGetFanSpeed, number, view->gpu.fans > 0, READ(fan_percent))
DEVICE_NUMBER(nvmlDeviceGetNumFans, number, ALWAYS, view->gpu.fans)
DEVICE_NUMBER(nvmlDeviceGetPersistenceMode, number, ALWAYS, view->gpu.persistence_mode)
DEVICE_NUMBER(nvmlDeviceGetComputeMode, number, ALWAYS, view->gpu.compute_mode)
DEVICE_NUMBER(nvmlDeviceGetDisplayActive, number, ALWAYS, view->gpu.display_active)
DEVICE_NUMBER(nvmlDeviceGetDisplayMode, number, ALWAYS, view->gpu.display_active)
DEVICE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, number, ALWAYS, READ(pcie_generation))
DEVICE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, number, ALWAYS, READ(pcie_width))
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, number, ALWAYS, view->gpu.pcie_max_generation)
DEVICE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, number, ALWAYS, view->gpu.pcie_max_width)
DEVICE_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, number, ALWAYS, view->gpu.pcie_device_generation)
DEVICE_NUMBER(nvmlDeviceGetPcieReplayCounter, number, ALWAYS, view->gpu.pcie_replays)

/* ---- utilisation, with the period over which the driver would have sampled ---- */

#define DEVICE_UTILIZATION(name, reading)                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *percent, unsigned int *sampling_us)      \
    {                                                                                             \
        ENTER_DEVICE(name, device);                                                               \
        REQUIRE_OUTPUT(percent);                                                                  \
        REQUIRE_OUTPUT(sampling_us);                                                              \
        REQUIRE(!view->gpu.mig_mode, NVML_ERROR_NOT_SUPPORTED);                                   \
        *percent = (number)READ(reading);                                                         \
        *sampling_us = 167000;                                                                    \
        return NVML_SUCCESS;                                                                      \
    }

DEVICE_UTILIZATION(nvmlDeviceGetEncoderUtilization, encoder_percent)
DEVICE_UTILIZATION(nvmlDeviceGetDecoderUtilization, decoder_percent)
DEVICE_UTILIZATION(nvmlDeviceGetJpgUtilization, jpeg_percent)
DEVICE_UTILIZATION(nvmlDeviceGetOfaUtilization, ofa_percent)

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates, device);
    REQUIRE_OUTPUT(utilization);
    /* A GPU that is cut into instances has no utilisation of its own: GPM tells each instance's. */
    REQUIRE(!view->gpu.mig_mode, NVML_ERROR_NOT_SUPPORTED);
    utilization->gpu = (number)READ(gpu_percent);
    utilization->memory = (number)READ(memory_percent);
    return NVML_SUCCESS;
}

/* ---- memory ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo, device);
    REQUIRE_OUTPUT(memory);
    REQUIRE(HAS(AIE_HAS_MEMORY), NVML_ERROR_NOT_SUPPORTED);
    memory->total = READ(memory_total_bytes);
    memory->free = READ(memory_free_bytes);
    /* The first version has nowhere to put what the driver keeps for itself: it counts as used. */
    memory->used = READ(memory_used_bytes);
    if (!view->gpu.readings[R_memory_used_bytes].fixed)
        memory->used += READ(memory_reserved_bytes);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, device);
    REQUIRE_OUTPUT(memory);
    REQUIRE(memory->version == NVML_VERSION(nvmlMemory_v2_t, 2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(HAS(AIE_HAS_MEMORY), NVML_ERROR_NOT_SUPPORTED);
    memory->total = READ(memory_total_bytes);
    memory->reserved = READ(memory_reserved_bytes);
    memory->free = READ(memory_free_bytes);
    memory->used = READ(memory_used_bytes);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo, device);
    REQUIRE_OUTPUT(memory);
    REQUIRE(HAS(AIE_HAS_MEMORY), NVML_ERROR_NOT_SUPPORTED);
    memory->bar1Total = view->gpu.bar1_total_bytes;
    memory->bar1Used = view->gpu.bar1_used_bytes;
    memory->bar1Free = view->gpu.bar1_total_bytes - view->gpu.bar1_used_bytes;
    return NVML_SUCCESS;
}

/* ---- temperature ---- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    ENTER_DEVICE(nvmlDeviceGetTemperature, device);
    REQUIRE_OUTPUT(celsius);
    REQUIRE(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    *celsius = (number)READ(temperature_c);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureV, device);
    REQUIRE_OUTPUT(temperature);
    REQUIRE(temperature->version == NVML_VERSION(nvmlTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(temperature->sensorType == 0, NVML_ERROR_INVALID_ARGUMENT);
    temperature->temperature = (int)READ(temperature_c);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold, unsigned int *celsius)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureThreshold, device);
    REQUIRE_OUTPUT(celsius);
    const uint32_t thresholds[] = { view->gpu.temperature_shutdown_c, view->gpu.temperature_slowdown_c,
                                    view->gpu.temperature_memory_max_c, view->gpu.temperature_gpu_max_c };
    REQUIRE(threshold < 8, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(threshold < 4 && thresholds[threshold] != 0, NVML_ERROR_NOT_SUPPORTED);
    *celsius = thresholds[threshold];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *margin)
{
    ENTER_DEVICE(nvmlDeviceGetMarginTemperature, device);
    REQUIRE_OUTPUT(margin);
    REQUIRE(margin->version == NVML_VERSION(nvmlMarginTemperature_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    margin->marginTemperature = (int)view->gpu.temperature_slowdown_c - (int)READ(temperature_c);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
    ENTER_DEVICE(nvmlDeviceGetFanSpeed_v2, device);
    REQUIRE_OUTPUT(percent);
    REQUIRE(view->gpu.fans > 0, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(fan < view->gpu.fans, NVML_ERROR_INVALID_ARGUMENT);
    *percent = (number)READ(fan_percent);
    return NVML_SUCCESS;
}

/* ---- clocks, power limits, violations ---- */

static nvmlReturn_t put_clock(const uint32_t clocks[4], unsigned int type, unsigned int *mhz)
{
    REQUIRE_OUTPUT(mhz);
    REQUIRE(type < 4, NVML_ERROR_INVALID_ARGUMENT);
    *mhz = clocks[type];
    return NVML_SUCCESS;
}

/* Graphics, SM, memory, video: the order of NVML's clock types. */
#define CURRENT_CLOCKS { (number)READ(graphics_mhz), (number)READ(sm_mhz), (number)READ(memory_mhz), (number)READ(video_mhz) }
#define MAXIMUM_CLOCKS                                                                                             \
    { view->gpu.clock_max_sm_mhz, view->gpu.clock_max_sm_mhz, view->gpu.clock_max_memory_mhz, view->gpu.clock_max_video_mhz }

#define DEVICE_CLOCK(name, clocks_now)                                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int type, unsigned int *mhz)            \
    {                                                                                       \
        ENTER_DEVICE(name, device);                                                         \
        const uint32_t clocks[4] = clocks_now;                                              \
        return put_clock(clocks, type, mhz);                                                \
    }

DEVICE_CLOCK(nvmlDeviceGetClockInfo, CURRENT_CLOCKS)
DEVICE_CLOCK(nvmlDeviceGetMaxClockInfo, MAXIMUM_CLOCKS)
DEVICE_CLOCK(nvmlDeviceGetApplicationsClock, MAXIMUM_CLOCKS)
DEVICE_CLOCK(nvmlDeviceGetDefaultApplicationsClock, MAXIMUM_CLOCKS)
DEVICE_CLOCK(nvmlDeviceGetMaxCustomerBoostClock, MAXIMUM_CLOCKS)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz)
{
    ENTER_DEVICE(nvmlDeviceGetClock, device);
    const uint32_t current[4] = CURRENT_CLOCKS;
    const uint32_t maximum[4] = MAXIMUM_CLOCKS;
    REQUIRE(id < 4, NVML_ERROR_INVALID_ARGUMENT);
    return put_clock(id == 0 ? current : maximum, type, mhz);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least_mw, unsigned int *most_mw)
{
    ENTER_DEVICE(nvmlDeviceGetPowerManagementLimitConstraints, device);
    REQUIRE_OUTPUT(least_mw);
    REQUIRE_OUTPUT(most_mw);
    REQUIRE(HAS(AIE_HAS_POWER_LIMIT), NVML_ERROR_NOT_SUPPORTED);
    *least_mw = view->gpu.power_minimum_mw;
    *most_mw = view->gpu.power_maximum_mw;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy, nvmlViolationTime_t *violation)
{
    static const int counters[12] = {
        C_violation_power_ns, C_violation_thermal_ns, C_violation_sync_boost_ns, C_violation_board_limit_ns,
        C_violation_low_utilization_ns, C_violation_reliability_ns, -1, -1, -1, -1,
        C_violation_application_clocks_ns, C_violation_base_clocks_ns,
    };
    ENTER_DEVICE(nvmlDeviceGetViolationStatus, device);
    REQUIRE_OUTPUT(violation);
    REQUIRE(policy < 12 && counters[policy] >= 0, NVML_ERROR_INVALID_ARGUMENT);
    violation->violationTime = model_counters(view)[counters[policy]];
    violation->referenceTime = view->epoch_us + view->now_ns / 1000;
    return NVML_SUCCESS;
}

/* ---- what a Linux host without confidential computing has not: asked for by monitors all the same ---- */

#define NEVER_SUPPORTED(name)                                                    \
    nvmlReturn_t name(nvmlDevice_t device, void *first, void *second)            \
    {                                                                            \
        ENTER_DEVICE(name, device);                                              \
        (void)view, (void)first, (void)second;                                   \
        return NVML_ERROR_NOT_SUPPORTED;                                         \
    }

NEVER_SUPPORTED(nvmlDeviceGetDriverModel)
NEVER_SUPPORTED(nvmlDeviceGetDriverModel_v2)
NEVER_SUPPORTED(nvmlDeviceGetConfComputeMemSizeInfo)
