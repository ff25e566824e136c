/* nvmlDeviceGetSamples: the driver's ring of recent samples, newer than a time. */
#define _GNU_SOURCE
#include "standin.h"

#define RING 120u

struct kind { enum reading reading; uint64_t period_ns; int supported; };

/* In the order of NVML's sampling types. Power is sampled every 20 ms, the rest about six times a second. */
static const struct kind kinds[] = {
    { R_power_mw, 20000000, 1 },
    { R_gpu_percent, 166666667, 1 },
    { R_memory_percent, 166666667, 1 },
    { R_encoder_percent, 166666667, 1 },
    { R_decoder_percent, 166666667, 1 },
    { R_sm_mhz, 20000000, 1 },
    { R_memory_mhz, 20000000, 1 },
    { R_power_mw, 20000000, 0 },
    { R_jpeg_percent, 166666667, 1 },
    { R_ofa_percent, 166666667, 1 },
};

/* Writes the samples of the ring that are newer, oldest first. Returns how many. */
static uint32_t fill_samples(const struct view *view, const struct kind *kind, uint64_t since_us, uint32_t room,
                             nvmlSample_t *samples)
{
    uint64_t readings[READING_COUNT];
    uint64_t newest = view->now_ns / kind->period_ns;
    uint64_t oldest = newest + 1 > RING ? newest + 1 - RING : 0;
    uint32_t count = 0;
    for (uint64_t number = oldest; number <= newest && count < room; number++) {
        uint64_t at_ns = number * kind->period_ns;
        uint64_t at_us = view->epoch_us + at_ns / 1000;
        if (at_us <= since_us)
            continue;
        model_readings_at(&view->gpu, at_ns, readings);
        samples[count] = (nvmlSample_t){ .timeStamp = at_us };
        samples[count++].sampleValue.uiVal = (unsigned int)readings[kind->reading];
    }
    return count;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long last_seen_us, int *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    ENTER_DEVICE(nvmlDeviceGetSamples, device);
    REQUIRE_OUTPUT(value_type);
    REQUIRE_OUTPUT(count);
    REQUIRE(type < ROWS(kinds), NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(kinds[type].supported && !view->gpu.mig_mode, NVML_ERROR_NOT_SUPPORTED);
    *value_type = NVML_UINT;
    if (samples == NULL) {
        *count = RING;
        return NVML_SUCCESS;
    }
    *count = fill_samples(view, &kinds[type], last_seen_us, *count, samples);
    return *count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
