/* Events: XIDs and the like, as the controller pushes them into the ring of the state file. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdlib.h>

#define SLICE_MS 250u              /* of a wait: what has no change of the configuration, a session's end, is seen by then at the latest */
#define SET_MAGIC 0x45565453u
#define SUPPORTED_TYPES 0xFF1Bull   /* single and double bit errors, XID, clock, MIG changes, and what newer drivers added */

struct aie_event_set {
    uint32_t magic;
    uint64_t next;                      /* number of the first event not handed out yet */
    uint64_t types[AIE_MAX_GPUS];       /* registered, by slot */
};

static uint64_t events_pushed(void)
{
    uint64_t pushed;
    door_copy_config(offsetof(struct aie_config, events_pushed), &pushed, sizeof pushed);
    return pushed;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER_SYSTEM(nvmlEventSetCreate);
    REQUIRE_OUTPUT(set);
    *set = calloc(1, sizeof **set);
    REQUIRE(*set != NULL, NVML_ERROR_MEMORY);
    (*set)->magic = SET_MAGIC;
    (*set)->next = events_pushed();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER_SYSTEM(nvmlEventSetFree);
    REQUIRE(set != NULL && set->magic == SET_MAGIC, NVML_ERROR_INVALID_ARGUMENT);
    set->magic = 0;
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER_DEVICE(nvmlDeviceGetSupportedEventTypes, device);
    REQUIRE_OUTPUT(types);
    *types = SUPPORTED_TYPES;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER_DEVICE(nvmlDeviceRegisterEvents, device);
    REQUIRE(set != NULL && set->magic == SET_MAGIC, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE((types & ~SUPPORTED_TYPES) == 0, NVML_ERROR_NOT_SUPPORTED);
    set->types[view->slot] |= types;
    return NVML_SUCCESS;
}

/* The next event that the set asked for, if there is one. What the ring has dropped is lost, as in a driver. */
static int take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    uint64_t pushed = events_pushed();
    if (pushed - set->next > AIE_MAX_EVENTS)
        set->next = pushed - AIE_MAX_EVENTS;
    while (set->next < pushed) {
        struct aie_event event;
        size_t place = offsetof(struct aie_config, events) + set->next++ % AIE_MAX_EVENTS * sizeof event;
        door_copy_config(place, &event, sizeof event);
        if (event.slot >= AIE_MAX_GPUS || (set->types[event.slot] & event.type) == 0)
            continue;
        *data = (nvmlEventData_t){ door_handle_of_slot(event.slot, -1), event.type, event.data, event.gpu_instance,
                                   event.compute_instance };
        return 1;
    }
    return 0;
}

static int any_lost(nvmlEventSet_t set)
{
    for (uint32_t slot = 0; slot < AIE_MAX_GPUS; slot++) {
        uint32_t lost = 0;
        size_t place = offsetof(struct aie_config, gpus) + slot * sizeof(struct aie_gpu) + offsetof(struct aie_gpu, lost);
        if (set->types[slot] != 0)
            door_copy_config(place, &lost, sizeof lost);
        if (lost)
            return 1;
    }
    return 0;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    REQUIRE(set != NULL && set->magic == SET_MAGIC, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE_OUTPUT(data);
    uint64_t until_ns = door_monotonic_ns() + timeout_ms * 1000000ull;
    for (;;) {
        uint32_t seen = door_change();      /* first: what comes from here on ends the sleep at once */
        REQUIRE(door_open(), NVML_ERROR_UNINITIALIZED);
        if (take_event(set, data))
            return NVML_SUCCESS;
        /* What happened before the GPU went is told first: often it says why. */
        REQUIRE(!any_lost(set), NVML_ERROR_GPU_IS_LOST);
        uint64_t now_ns = door_monotonic_ns();
        REQUIRE(now_ns < until_ns, NVML_ERROR_TIMEOUT);
        uint64_t left_ns = until_ns - now_ns, slice_ns = SLICE_MS * 1000000ull;
        door_sleep_until_changed(seen, left_ns < slice_ns ? left_ns : slice_ns);
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER_SYSTEM(nvmlEventSetWait);
    return wait_for_event(set, data, timeout_ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER_SYSTEM(nvmlEventSetWait_v2);
    return wait_for_event(set, data, timeout_ms);
}
