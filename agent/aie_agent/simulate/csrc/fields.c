/* nvmlDeviceGetFieldValues: many values in one call, each with an error of its own. A field is a row of `fields`. */
#define _GNU_SOURCE
#include "standin.h"

enum source { FROM_READING, FROM_COUNTER, FROM_GPU, FROM_GPU_WIDE, FROM_LINKS, FROM_LINK_TRAFFIC };

#define FIRST_OF_NVLINK5 201           /* links before the fifth generation know no field of a link from here on, later ones none below */
#define ERRORS(number) LINK(packet_errors[number])

struct field {
    uint32_t id;
    int type;
    enum source source;
    size_t place;              /* which reading or counter, or the offset of the member */
    uint64_t divisor;          /* the value is divided by this */
    uint32_t needs;            /* flag that the product must have; 0: none */
};

/* Raw traffic has the protocol's overhead in it: taken as a tenth here. */
#define RAW_KIB (1024 * 10 / 11)

#define GPU(member) offsetof(struct aie_gpu, member)
#define LINK(member) offsetof(struct aie_link, member)

/* Identifiers and units as in NVML's header. */
static const struct field fields[] = {
    { 3, NVML_ULONG_LONG, FROM_GPU_WIDE, GPU(ecc_corrected_volatile), 1, AIE_HAS_ECC },
    { 4, NVML_ULONG_LONG, FROM_GPU_WIDE, GPU(ecc_uncorrected_volatile), 1, AIE_HAS_ECC },
    { 5, NVML_ULONG_LONG, FROM_GPU_WIDE, GPU(ecc_corrected_aggregate), 1, AIE_HAS_ECC },
    { 6, NVML_ULONG_LONG, FROM_GPU_WIDE, GPU(ecc_uncorrected_aggregate), 1, AIE_HAS_ECC },
    { 29, NVML_UINT, FROM_GPU, GPU(retired_single_count), 1, AIE_RETIRES_PAGES },
    { 30, NVML_UINT, FROM_GPU, GPU(retired_double_count), 1, AIE_RETIRES_PAGES },
    { 31, NVML_UINT, FROM_GPU, GPU(retired_pending), 1, AIE_RETIRES_PAGES },
    { 38, NVML_ULONG_LONG, FROM_LINKS, LINK(crc_flit_errors), 1, 0 },
    { 45, NVML_ULONG_LONG, FROM_LINKS, LINK(crc_data_errors), 1, 0 },
    { 52, NVML_ULONG_LONG, FROM_LINKS, LINK(replay_errors), 1, 0 },
    { 59, NVML_ULONG_LONG, FROM_LINKS, LINK(recovery_errors), 1, 0 },
    { 74, NVML_ULONG_LONG, FROM_COUNTER, C_violation_power_ns, 1, 0 },
    { 75, NVML_ULONG_LONG, FROM_COUNTER, C_violation_thermal_ns, 1, 0 },
    { 76, NVML_ULONG_LONG, FROM_COUNTER, C_violation_sync_boost_ns, 1, 0 },
    { 77, NVML_ULONG_LONG, FROM_COUNTER, C_violation_board_limit_ns, 1, 0 },
    { 78, NVML_ULONG_LONG, FROM_COUNTER, C_violation_low_utilization_ns, 1, 0 },
    { 79, NVML_ULONG_LONG, FROM_COUNTER, C_violation_reliability_ns, 1, 0 },
    { 80, NVML_ULONG_LONG, FROM_COUNTER, C_violation_application_clocks_ns, 1, 0 },
    { 81, NVML_ULONG_LONG, FROM_COUNTER, C_violation_base_clocks_ns, 1, 0 },
    { 82, NVML_UINT, FROM_READING, R_memory_temperature_c, 1, AIE_HAS_MEMORY_TEMPERATURE },
    { 83, NVML_ULONG_LONG, FROM_COUNTER, C_energy_uj, 1000, AIE_HAS_ENERGY },
    { 90, NVML_UINT, FROM_GPU, GPU(link_mb_per_s), 1, 0 },
    { 91, NVML_UINT, FROM_GPU, GPU(link_count), 1, 0 },
    { 94, NVML_UINT, FROM_GPU, GPU(pcie_replays), 1, 0 },
    { 138, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_tx_bytes, 1024, 0 },
    { 139, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_rx_bytes, 1024, 0 },
    { 140, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_tx_bytes, RAW_KIB, 0 },
    { 141, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_rx_bytes, RAW_KIB, 0 },
    { 142, NVML_UINT, FROM_GPU, GPU(remapped_corrected), 1, AIE_HAS_ECC },
    { 143, NVML_UINT, FROM_GPU, GPU(remapped_uncorrected), 1, AIE_HAS_ECC },
    { 144, NVML_UINT, FROM_GPU, GPU(remapped_pending), 1, AIE_HAS_ECC },
    { 145, NVML_UINT, FROM_GPU, GPU(remapped_failed), 1, AIE_HAS_ECC },
    { 147, NVML_UINT, FROM_GPU, GPU(link_count), 1, 0 },
    { 160, NVML_ULONG_LONG, FROM_LINKS, LINK(ecc_errors), 1, 0 },
    { 161, NVML_ULONG_LONG, FROM_LINKS, LINK(replay_errors), 1, 0 },
    { 162, NVML_ULONG_LONG, FROM_LINKS, LINK(recovery_errors), 1, 0 },
    { 163, NVML_ULONG_LONG, FROM_LINKS, LINK(crc_flit_errors), 1, 0 },
    { 164, NVML_UINT, FROM_GPU, GPU(link_mb_per_s), 1, 0 },
    { 170, NVML_UINT, FROM_GPU, GPU(c2c_link_count), 1, 0 },
    { 172, NVML_UINT, FROM_GPU, GPU(c2c_link_mb_per_s), 1, 0 },
    { 173, NVML_UINT, FROM_GPU, GPU(pcie_errors[0]), 1, 0 },
    { 174, NVML_UINT, FROM_GPU, GPU(pcie_errors[1]), 1, 0 },
    { 175, NVML_UINT, FROM_GPU, GPU(pcie_errors[2]), 1, 0 },
    { 176, NVML_UINT, FROM_GPU, GPU(pcie_errors[3]), 1, 0 },
    { 177, NVML_UINT, FROM_GPU, GPU(pcie_errors[4]), 1, 0 },
    { 178, NVML_UINT, FROM_GPU, GPU(pcie_errors[5]), 1, 0 },
    { 179, NVML_UINT, FROM_GPU, GPU(pcie_errors[6]), 1, 0 },
    { 180, NVML_UINT, FROM_GPU, GPU(pcie_errors[7]), 1, 0 },
    { 181, NVML_UINT, FROM_GPU, GPU(pcie_errors[8]), 1, 0 },
    { 182, NVML_UINT, FROM_GPU, GPU(pcie_errors[9]), 1, 0 },
    { 183, NVML_UINT, FROM_GPU, GPU(pcie_errors[10]), 1, 0 },
    { 185, NVML_UINT, FROM_READING, R_power_mw, 1, 0 },
    { 186, NVML_UINT, FROM_READING, R_power_mw, 1, 0 },
    { 187, NVML_UINT, FROM_GPU, GPU(power_minimum_mw), 1, AIE_HAS_POWER_LIMIT },
    { 188, NVML_UINT, FROM_GPU, GPU(power_maximum_mw), 1, AIE_HAS_POWER_LIMIT },
    { 189, NVML_UINT, FROM_GPU, GPU(power_default_mw), 1, AIE_HAS_POWER_LIMIT },
    { 190, NVML_UINT, FROM_GPU, GPU(power_limit_mw), 1, AIE_HAS_POWER_LIMIT },
    { 191, NVML_ULONG_LONG, FROM_COUNTER, C_energy_uj, 1000, AIE_HAS_ENERGY },
    { 192, NVML_UINT, FROM_GPU, GPU(power_limit_mw), 1, AIE_HAS_POWER_LIMIT },
    { 197, NVML_ULONG_LONG, FROM_COUNTER, C_pcie_tx_bytes, 1, AIE_HAS_GPM },
    { 198, NVML_ULONG_LONG, FROM_COUNTER, C_pcie_rx_bytes, 1, AIE_HAS_GPM },
    { 202, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_tx_bytes, 1, AIE_HAS_NVLINK5 },
    { 204, NVML_ULONG_LONG, FROM_LINK_TRAFFIC, C_nvlink_rx_bytes, 1, AIE_HAS_NVLINK5 },
    { 206, NVML_ULONG_LONG, FROM_LINKS, ERRORS(0), 1, AIE_HAS_NVLINK5 },
    { 207, NVML_ULONG_LONG, FROM_LINKS, ERRORS(1), 1, AIE_HAS_NVLINK5 },
    { 208, NVML_ULONG_LONG, FROM_LINKS, ERRORS(2), 1, AIE_HAS_NVLINK5 },
    { 209, NVML_ULONG_LONG, FROM_LINKS, ERRORS(3), 1, AIE_HAS_NVLINK5 },
    { 210, NVML_ULONG_LONG, FROM_LINKS, ERRORS(4), 1, AIE_HAS_NVLINK5 },
    { 211, NVML_ULONG_LONG, FROM_LINKS, ERRORS(5), 1, AIE_HAS_NVLINK5 },
    { 212, NVML_ULONG_LONG, FROM_LINKS, ERRORS(6), 1, AIE_HAS_NVLINK5 },
    { 213, NVML_ULONG_LONG, FROM_LINKS, ERRORS(7), 1, AIE_HAS_NVLINK5 },
    { 214, NVML_ULONG_LONG, FROM_LINKS, ERRORS(8), 1, AIE_HAS_NVLINK5 },
    { 215, NVML_ULONG_LONG, FROM_LINKS, ERRORS(9), 1, AIE_HAS_NVLINK5 },
    { 219, NVML_ULONG_LONG, FROM_LINKS, ERRORS(10), 1, AIE_HAS_NVLINK5 },
    { 221, NVML_ULONG_LONG, FROM_LINKS, ERRORS(11), 1, AIE_HAS_NVLINK5 },
    { 230, NVML_UINT, FROM_GPU, GPU(recovery_action), 1, 0 },
    { 269, NVML_ULONG_LONG, FROM_COUNTER, C_violation_software_thermal_ns, 1, 0 },
    { 270, NVML_ULONG_LONG, FROM_COUNTER, C_violation_hardware_thermal_ns, 1, 0 },
    { 271, NVML_ULONG_LONG, FROM_COUNTER, C_violation_power_brake_ns, 1, 0 },
};

static const struct field *find_field(uint32_t id)
{
    for (size_t row = 0; row < ROWS(fields); row++)
        if (fields[row].id == id)
            return &fields[row];
    return NULL;
}

static int covers(uint32_t scope, uint32_t link) { return scope == ALL_LINKS || scope == link; }

/* The sum over the links that the scope names: one, or all. */
static uint64_t sum_links(const struct aie_gpu *gpu, uint32_t scope, size_t member)
{
    uint64_t sum = 0;
    for (uint32_t link = 0; link < gpu->link_count && link < AIE_MAX_LINKS; link++)
        if (covers(scope, link)) {
            uint64_t errors;
            memcpy(&errors, (const char *)&gpu->links[link] + member, sizeof errors);
            sum += errors;
        }
    return sum;
}

/* Traffic is counted for the GPU and spread evenly over the links that are up. */
static uint64_t link_traffic(const struct view *view, uint32_t scope, size_t counter)
{
    uint64_t total = model_counters(view)[counter];
    uint64_t active = 0, covered = 0;
    for (uint32_t link = 0; link < view->gpu.link_count && link < AIE_MAX_LINKS; link++) {
        active += view->gpu.links[link].active;
        covered += view->gpu.links[link].active && covers(scope, link);
    }
    return active == 0 ? total : scope == ALL_LINKS ? total : total / active * covered;
}

static uint64_t field_value(const struct view *view, const struct field *field, uint32_t scope)
{
    uint64_t wide;
    uint32_t narrow;
    switch (field->source) {
    case FROM_READING:
        return view->readings[field->place];
    case FROM_COUNTER:
        return model_counters(view)[field->place];
    case FROM_LINKS:
        return sum_links(&view->gpu, scope, field->place);
    case FROM_LINK_TRAFFIC:
        return link_traffic(view, scope, field->place);
    case FROM_GPU_WIDE:
        memcpy(&wide, (const char *)&view->gpu + field->place, sizeof wide);
        return wide;
    case FROM_GPU:
        break;
    }
    memcpy(&narrow, (const char *)&view->gpu + field->place, sizeof narrow);
    return narrow;
}

static int is_of_links(const struct field *field)
{
    return field->source == FROM_LINKS || field->source == FROM_LINK_TRAFFIC ||
           (field->source == FROM_GPU && field->place == GPU(link_mb_per_s));
}

static int counts_on_links(const struct field *field) { return field->source == FROM_LINKS || field->source == FROM_LINK_TRAFFIC; }

/* What links of the fifth generation count, each counts for itself: there is no sum of all. */
static nvmlReturn_t why_not_of_link(const struct view *view, const struct field *field, uint32_t scope)
{
    REQUIRE((field->id >= FIRST_OF_NVLINK5) == (HAS(AIE_HAS_NVLINK5) != 0), NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(field->id < FIRST_OF_NVLINK5 || scope < view->gpu.link_count, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}

static nvmlReturn_t why_not(const struct view *view, const struct field *field, uint32_t id, uint32_t scope)
{
    nvmlReturn_t fault = door_field_fault(id, view->slot);
    if (fault != NVML_SUCCESS)
        return fault;
    if (field == NULL || (view->gpu.flags & field->needs) != field->needs)
        return NVML_ERROR_NOT_SUPPORTED;
    if (is_of_links(field) && view->gpu.link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return counts_on_links(field) ? why_not_of_link(view, field, scope) : NVML_SUCCESS;
}

static void fill_field(const struct view *view, nvmlFieldValue_t *value)
{
    const struct field *field = find_field(value->fieldId);
    value->timestamp = (long long)(view->epoch_us + view->now_ns / 1000);
    value->latencyUsec = 0;
    value->nvmlReturn = why_not(view, field, value->fieldId, value->scopeId);
    if (value->nvmlReturn != NVML_SUCCESS)
        return;
    /* Totals name no link: their scope is 0, and means all. Traffic and per-link errors take a link's number. */
    int total = field->id <= 160 && field->source == FROM_LINKS;
    value->valueType = field->type;
    memset(&value->value, 0, sizeof value->value);
    value->value.ullVal = field_value(view, field, total ? ALL_LINKS : value->scopeId) / field->divisor;
    if (field->type == NVML_UINT)
        value->value.uiVal = (unsigned int)value->value.ullVal;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues, device);
    REQUIRE(count > 0 && values != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (int row = 0; row < count; row++)
        fill_field(view, &values[row]);
    return NVML_SUCCESS;
}
