/* Who is on a GPU, in each of the layouts that drivers have had, and how busy each keeps it. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdlib.h>

#define NO_INSTANCE 0xFFFFFFFFu
#define SAMPLE_PERIOD_NS 166666667ull   /* the driver keeps about six samples a second */
#define PERCENT_OF_LOAD(view) ((view)->readings[R_gpu_percent])

/* Is this process one of the kinds asked for, and in the instance when the handle is an instance's? */
static int belongs(const struct view *view, const struct aie_process *process, uint32_t kinds)
{
    if ((process->kinds & kinds) == 0)
        return 0;
    if (view->mig == NULL && view->gpu.mig_mode && view->gpu.mig_hides_processes)
        return 0;
    return view->mig == NULL || process->gpu_instance == view->mig->gpu_instance;
}

static uint32_t count_processes(const struct view *view, uint32_t kinds)
{
    uint32_t count = 0;
    for (uint32_t row = 0; row < view->gpu.process_count; row++)
        count += (uint32_t)belongs(view, &view->processes[row], kinds);
    return count;
}

/* Writes one entry. The layouts agree in their first fields: a shorter one is a prefix of the longest. */
static void put_process(const struct view *view, const struct aie_process *process, char *to, size_t size)
{
    nvmlProcessDetail_v1_t entry = {
        .pid = process->pid,
        .usedGpuMemory = process->used_bytes,
        .gpuInstanceId = view->gpu.mig_mode ? process->gpu_instance : NO_INSTANCE,
        .computeInstanceId = view->gpu.mig_mode ? process->compute_instance : NO_INSTANCE,
        .usedGpuCcProtectedMemory = 0,   /* not all bits set: nvidia-ml-py 13 fails on that */
    };
    memcpy(to, &entry, size);
}

static nvmlReturn_t put_processes(const struct view *view, uint32_t kinds, unsigned int *count, void *to, size_t entry_size)
{
    REQUIRE_OUTPUT(count);
    uint32_t have = count_processes(view, kinds);
    uint32_t room = *count;
    *count = have;
    if (have == 0)
        return NVML_SUCCESS;
    REQUIRE(room >= have && to != NULL, NVML_ERROR_INSUFFICIENT_SIZE);
    char *next = to;
    for (uint32_t row = 0; row < view->gpu.process_count; row++)
        if (belongs(view, &view->processes[row], kinds)) {
            put_process(view, &view->processes[row], next, entry_size);
            next += entry_size;
        }
    return NVML_SUCCESS;
}

#define PROCESSES(name, kinds, entry_size)                                        \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)      \
    {                                                                             \
        ENTER_DEVICE(name, device);                                               \
        return put_processes(view, kinds, count, infos, entry_size);              \
    }

#define V1 sizeof(nvmlProcessInfo_v1_t)
#define V2 sizeof(nvmlProcessInfo_v2_t)
/* The first 535 drivers gave _v3 entries another field: a reader that does not know sees scrambled pids. */
#define V3 (view->process_info_bytes == sizeof(nvmlProcessDetail_v1_t) ? sizeof(nvmlProcessDetail_v1_t) : V2)

PROCESSES(nvmlDeviceGetComputeRunningProcesses, AIE_COMPUTE, V1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, AIE_COMPUTE, V2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, AIE_COMPUTE, V3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, AIE_GRAPHICS, V1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, AIE_GRAPHICS, V2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, AIE_GRAPHICS, V3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, AIE_MPS, V1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, AIE_MPS, V2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, AIE_MPS, V3)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    static const uint32_t kinds_of_mode[] = { AIE_COMPUTE, AIE_GRAPHICS, AIE_MPS };
    ENTER_DEVICE(nvmlDeviceGetRunningProcessDetailList, device);
    REQUIRE_OUTPUT(list);
    REQUIRE(list->version == NVML_VERSION(nvmlProcessDetailList_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(list->mode < 3, NVML_ERROR_INVALID_ARGUMENT);
    return put_processes(view, kinds_of_mode[list->mode], &list->numProcArrayEntries, list->procArray, sizeof *list->procArray);
}

/* ---- utilisation of processes ---- */

static unsigned int percent(uint32_t wanted, unsigned int follows)
{
    return wanted == AIE_FOLLOWS_LOAD ? follows : wanted;
}

/* The newest sample of one process; 0 when it has none after `since_us`: idle processes leave none. */
static int sample_of(const struct view *view, const struct aie_process *process, uint64_t since_us,
                     nvmlProcessUtilizationInfo_v1_t *sample)
{
    uint32_t sharing = count_processes(view, AIE_COMPUTE | AIE_MPS);
    unsigned int share = (unsigned int)PERCENT_OF_LOAD(view) / (sharing > 0 ? sharing : 1);
    uint64_t newest_ns = view->now_ns / SAMPLE_PERIOD_NS * SAMPLE_PERIOD_NS;
    int64_t newest_us = (int64_t)(view->epoch_us + newest_ns / 1000) - process->sample_age_us;
    *sample = (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = (unsigned long long)newest_us,
        .pid = process->pid,
        .smUtil = percent(process->sm_percent, share),
        .memUtil = percent(process->memory_percent, share * 63 / 100),
        .encUtil = process->encoder_percent,
        .decUtil = process->decoder_percent,
    };
    int busy = sample->smUtil || sample->memUtil || sample->encUtil || sample->decUtil;
    return busy && sample->timeStamp > since_us;
}

static uint32_t collect_samples(const struct view *view, uint64_t since_us,
                                nvmlProcessUtilizationInfo_v1_t samples[AIE_MAX_PROCESSES])
{
    uint32_t count = 0;
    for (uint32_t row = 0; row < view->gpu.process_count; row++)
        count += (uint32_t)sample_of(view, &view->processes[row], since_us, &samples[count]);
    return count;
}

/* Fills `samples`, or says why not: NOT_FOUND when nothing was busy since, INSUFFICIENT_SIZE with the number needed. */
static nvmlReturn_t samples_since(const struct view *view, uint64_t since_us, unsigned int *room, int have_buffer,
                                  nvmlProcessUtilizationInfo_v1_t samples[AIE_MAX_PROCESSES])
{
    REQUIRE(!view->gpu.mig_mode, NVML_ERROR_NOT_SUPPORTED);
    uint32_t count = collect_samples(view, since_us, samples);
    REQUIRE(count > 0, NVML_ERROR_NOT_FOUND);
    uint32_t had = *room;
    *room = count;
    return have_buffer && had >= count ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *to, unsigned int *count,
                                             unsigned long long last_seen_us)
{
    ENTER_DEVICE(nvmlDeviceGetProcessUtilization, device);
    REQUIRE_OUTPUT(count);
    static _Thread_local nvmlProcessUtilizationInfo_v1_t samples[AIE_MAX_PROCESSES];
    nvmlReturn_t result = samples_since(view, last_seen_us, count, to != NULL, samples);
    for (uint32_t row = 0; result == NVML_SUCCESS && row < *count; row++)
        to[row] = (nvmlProcessUtilizationSample_t){ samples[row].pid,     samples[row].timeStamp, samples[row].smUtil,
                                                    samples[row].memUtil, samples[row].encUtil,   samples[row].decUtil };
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetProcessesUtilizationInfo, device);
    REQUIRE_OUTPUT(info);
    REQUIRE(info->version == NVML_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    static _Thread_local nvmlProcessUtilizationInfo_v1_t samples[AIE_MAX_PROCESSES];
    nvmlReturn_t result =
        samples_since(view, info->lastSeenTimeStamp, &info->processSamplesCount, info->procUtilArray != NULL, samples);
    if (result == NVML_SUCCESS)
        memcpy(info->procUtilArray, samples, info->processSamplesCount * sizeof samples[0]);
    return result;
}
