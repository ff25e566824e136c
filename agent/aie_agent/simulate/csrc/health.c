/* Memory errors: ECC counts, retired pages (before Ampere) and remapped rows (since). */
#define _GNU_SOURCE
#include "standin.h"

#define BANKS 640u      /* of an H100: all can still be remapped when none is */
#define DRAM 2u

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER_DEVICE(nvmlDeviceGetEccMode, device);
    REQUIRE_OUTPUT(current);
    REQUIRE_OUTPUT(pending);
    REQUIRE(HAS(AIE_HAS_ECC), NVML_ERROR_NOT_SUPPORTED);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

static nvmlReturn_t put_ecc(const struct view *view, unsigned int uncorrected, unsigned int aggregate, unsigned long long *errors)
{
    REQUIRE_OUTPUT(errors);
    REQUIRE(uncorrected < 2 && aggregate < 2, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(HAS(AIE_HAS_ECC), NVML_ERROR_NOT_SUPPORTED);
    const uint64_t counts[2][2] = { { view->gpu.ecc_corrected_volatile, view->gpu.ecc_corrected_aggregate },
                                    { view->gpu.ecc_uncorrected_volatile, view->gpu.ecc_uncorrected_aggregate } };
    *errors = counts[uncorrected][aggregate];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind, unsigned int lifetime, unsigned long long *errors)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, device);
    return put_ecc(view, kind, lifetime, errors);
}

/* Every error of the stand-in is one of the DRAM. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int kind, unsigned int lifetime, unsigned int location,
                                             unsigned long long *errors)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryErrorCounter, device);
    REQUIRE(location < 8, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = put_ecc(view, kind, lifetime, errors);
    if (result == NVML_SUCCESS && location != DRAM)
        *errors = 0;
    return result;
}

static nvmlReturn_t put_pages(const struct view *view, unsigned int cause, unsigned int *count, unsigned long long *addresses,
                              unsigned long long *times_us)
{
    REQUIRE_OUTPUT(count);
    REQUIRE(cause < 2, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(HAS(AIE_RETIRES_PAGES), NVML_ERROR_NOT_SUPPORTED);
    uint32_t have = cause == 0 ? view->gpu.retired_single_count : view->gpu.retired_double_count;
    const uint64_t *pages = cause == 0 ? view->gpu.retired_pages_single : view->gpu.retired_pages_double;
    if (have > AIE_MAX_PAGES)
        have = AIE_MAX_PAGES;
    uint32_t room = *count;
    *count = have;
    REQUIRE(have == 0 || (room >= have && addresses != NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    for (uint32_t page = 0; page < have; page++) {
        addresses[page] = pages[page];
        if (times_us != NULL)
            times_us[page] = view->epoch_us;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count, unsigned long long *addresses)
{
    ENTER_DEVICE(nvmlDeviceGetRetiredPages, device);
    return put_pages(view, cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *times_us)
{
    ENTER_DEVICE(nvmlDeviceGetRetiredPages_v2, device);
    return put_pages(view, cause, count, addresses, times_us);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    ENTER_DEVICE(nvmlDeviceGetRetiredPagesPendingStatus, device);
    REQUIRE_OUTPUT(pending);
    REQUIRE(HAS(AIE_RETIRES_PAGES), NVML_ERROR_NOT_SUPPORTED);
    *pending = view->gpu.retired_pending;
    return NVML_SUCCESS;
}

static int remaps_rows(const struct view *view) { return HAS(AIE_HAS_ECC) && !HAS(AIE_RETIRES_PAGES); }

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    ENTER_DEVICE(nvmlDeviceGetRemappedRows, device);
    REQUIRE(corrected != NULL && uncorrected != NULL && pending != NULL && failed != NULL, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(remaps_rows(view), NVML_ERROR_NOT_SUPPORTED);
    *corrected = view->gpu.remapped_corrected;
    *uncorrected = view->gpu.remapped_uncorrected;
    *pending = view->gpu.remapped_pending;
    *failed = view->gpu.remapped_failed;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks)
{
    ENTER_DEVICE(nvmlDeviceGetRowRemapperHistogram, device);
    REQUIRE_OUTPUT(banks);
    REQUIRE(remaps_rows(view), NVML_ERROR_NOT_SUPPORTED);
    uint32_t remapped = view->gpu.remapped_corrected + view->gpu.remapped_uncorrected;
    uint32_t touched = remapped < BANKS ? remapped : BANKS;
    *banks = (nvmlRowRemapperHistogramValues_t){ .max = BANKS - touched, .high = touched };
    if (view->gpu.remapped_failed && banks->max > 0) {
        banks->max--;
        banks->none++;
    }
    return NVML_SUCCESS;
}
