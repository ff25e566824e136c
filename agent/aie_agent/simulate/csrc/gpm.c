/* GPM, the counters of Hopper and later: two samples, and what happened between them. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdlib.h>

#define SAMPLE_MAGIC 0x47504D53u
#define FIRST_LINK_METRIC 62u

struct aie_gpm_sample {
    uint32_t magic;
    uint32_t taken;
    uint32_t slot;
    int mig;                       /* -1: the GPU itself */
    uint32_t active_links;
    uint64_t at_ns;
    uint64_t counters[COUNTER_COUNT];
    uint64_t instance_busy_ns;
};

enum form { SHARE, RATE };

static const struct metric {
    uint32_t id;
    enum form form;                /* SHARE: percent of the time; RATE: MiB a second */
    enum counter counter;
    enum reading reading;          /* of which it is the integral */
    const char *name;
} metrics[] = {
    { 1, SHARE, C_graphics_ns, R_graphics_ppm, "Graphics activity" },
    { 2, SHARE, C_sm_ns, R_sm_ppm, "SM activity" },
    { 3, SHARE, C_occupancy_ns, R_occupancy_ppm, "SM occupancy" },
    { 4, SHARE, C_integer_ns, R_integer_ppm, "Integer activity" },
    { 5, SHARE, C_tensor_ns, R_tensor_ppm, "Tensor activity" },
    { 6, SHARE, C_dfma_ns, R_dfma_ppm, "DFMA tensor activity" },
    { 7, SHARE, C_hmma_ns, R_hmma_ppm, "HMMA tensor activity" },
    { 8, SHARE, C_dmma_ns, R_dmma_ppm, "DMMA tensor activity" },
    { 9, SHARE, C_imma_ns, R_imma_ppm, "IMMA tensor activity" },
    { 10, SHARE, C_dram_ns, R_dram_ppm, "DRAM activity" },
    { 11, SHARE, C_fp64_ns, R_fp64_ppm, "FP64 activity" },
    { 12, SHARE, C_fp32_ns, R_fp32_ppm, "FP32 activity" },
    { 13, SHARE, C_fp16_ns, R_fp16_ppm, "FP16 activity" },
    { 20, RATE, C_pcie_tx_bytes, R_pcie_tx_kb_per_s, "PCIe TX" },
    { 21, RATE, C_pcie_rx_bytes, R_pcie_rx_kb_per_s, "PCIe RX" },
    { 30, SHARE, C_decoder_ns, R_decoder_percent, "NVDEC 0" },
    { 40, SHARE, C_jpeg_ns, R_jpeg_percent, "NVJPG 0" },
    { 50, SHARE, C_ofa_ns, R_ofa_percent, "NVOFA 0" },
    { 60, RATE, C_nvlink_rx_bytes, R_nvlink_rx_kib_per_s, "NVLink RX" },
    { 61, RATE, C_nvlink_tx_bytes, R_nvlink_tx_kib_per_s, "NVLink TX" },
};

static int valid(nvmlGpmSample_t sample) { return sample != NULL && sample->magic == SAMPLE_MAGIC; }

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER_DEVICE(nvmlGpmQueryDeviceSupport, device);
    REQUIRE_OUTPUT(support);
    REQUIRE(support->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    support->isSupportedDevice = HAS(AIE_HAS_GPM) != 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    ENTER_SYSTEM(nvmlGpmSampleAlloc);
    REQUIRE_OUTPUT(sample);
    *sample = calloc(1, sizeof **sample);
    REQUIRE(*sample != NULL, NVML_ERROR_MEMORY);
    (*sample)->magic = SAMPLE_MAGIC;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    ENTER_SYSTEM(nvmlGpmSampleFree);
    REQUIRE(valid(sample), NVML_ERROR_INVALID_ARGUMENT);
    sample->magic = 0;
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(const struct view *view, int mig, nvmlGpmSample_t sample)
{
    REQUIRE(valid(sample), NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(HAS(AIE_HAS_GPM), NVML_ERROR_NOT_SUPPORTED);
    model_profiled(view);
    sample->taken = 1;
    sample->slot = view->slot;
    sample->mig = mig;
    sample->at_ns = view->now_ns;
    sample->active_links = 0;
    for (uint32_t link = 0; link < view->gpu.link_count && link < AIE_MAX_LINKS; link++)
        sample->active_links += view->gpu.links[link].active;
    memcpy(sample->counters, model_counters(view), sizeof sample->counters);
    sample->instance_busy_ns = mig >= 0 ? model_instance_busy_ns(view, mig) : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(nvmlGpmSampleGet, device);
    return take_sample(view, -1, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(nvmlGpmMigSampleGet, device);
    for (int mig = 0; mig < AIE_MAX_MIG; mig++)
        if (view->gpu.mig_mode && view->gpu.mig[mig].present && view->gpu.mig[mig].gpu_instance == gpu_instance)
            return take_sample(view, mig, sample);
    return NVML_ERROR_NOT_FOUND;
}

/* ---- what happened between two samples ---- */

static const struct metric *find_metric(uint32_t id)
{
    for (size_t row = 0; row < ROWS(metrics); row++)
        if (metrics[row].id == id)
            return &metrics[row];
    return NULL;
}

static double difference(const struct metric *metric, nvmlGpmSample_t first, nvmlGpmSample_t second)
{
    if (second->mig >= 0)
        return (double)(second->instance_busy_ns - first->instance_busy_ns) * model_share(metric->reading);
    return (double)(second->counters[metric->counter] - first->counters[metric->counter]);
}

static double metric_value(const struct metric *metric, nvmlGpmSample_t first, nvmlGpmSample_t second)
{
    double elapsed_ns = (double)(second->at_ns - first->at_ns);
    double gained = difference(metric, first, second);
    return metric->form == SHARE ? 100 * gained / elapsed_ns : gained / (elapsed_ns / 1e9) / 1048576;
}

static void fill_metric(nvmlGpmMetric_t *to, nvmlGpmSample_t first, nvmlGpmSample_t second)
{
    /* Receive and transmit of each link follow the totals, in turn; what they say is the total's share. */
    uint32_t beyond = to->metricId - FIRST_LINK_METRIC;
    int of_link = to->metricId >= FIRST_LINK_METRIC && beyond / 2 < second->active_links;
    const struct metric *metric = find_metric(of_link ? 60 + beyond % 2 : to->metricId);
    to->nvmlReturn = door_field_fault(AIE_GPM_FAULT + to->metricId, second->slot);
    if (to->nvmlReturn == NVML_SUCCESS && (metric == NULL || (second->mig >= 0 && metric->form == RATE)))
        to->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (to->nvmlReturn == NVML_SUCCESS && second->at_ns <= first->at_ns)
        to->nvmlReturn = NVML_ERROR_NO_DATA;
    if (to->nvmlReturn != NVML_SUCCESS)
        return;
    to->value = metric_value(metric, first, second) / (of_link ? second->active_links : 1);
    to->metricInfo.shortName = to->metricInfo.longName = (char *)metric->name;
    to->metricInfo.unit = (char *)(metric->form == SHARE ? "%" : "MiB/s");
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    ENTER_SYSTEM(nvmlGpmMetricsGet);
    REQUIRE_OUTPUT(request);
    REQUIRE(request->version == 1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlGpmSample_t first = request->sample1, second = request->sample2;
    REQUIRE(valid(first) && valid(second), NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(first->taken && second->taken, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(first->slot == second->slot && first->mig == second->mig, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t row = 0; row < request->numMetrics; row++)
        fill_metric(&request->metrics[row], first, second);
    return NVML_SUCCESS;
}
