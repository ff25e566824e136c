/* What the files of the stand-in share: the door that every call goes through, and the model behind it. */
#ifndef AIE_STANDIN_H
#define AIE_STANDIN_H

#include <stddef.h>
#include <string.h>

#include "nvml_types.h"
#include "state.h"

enum function {
#define FUNCTION(name, since, scope) FN_##name,
#include "functions.def"
#undef FUNCTION
    FUNCTION_COUNT
};

enum reading {
#define READING(name) R_##name,
#include "readings.def"
#undef READING
    READING_COUNT
};

enum counter {
#define COUNTER(name, reading, divisor) C_##name,
#define VIOLATION(name, bits) C_##name,
#include "counters.def"
#undef COUNTER
#undef VIOLATION
    COUNTER_COUNT
};

/* What one call sees: a copy of the GPU's state that no later change can tear. */
struct view {
    uint32_t slot;                /* which GPU of the file */
    uint32_t index;               /* NVML's index: removed GPUs are left out */
    uint64_t now_ns;              /* simulated */
    uint64_t epoch_us;            /* of simulated time 0 */
    uint32_t process_info_bytes;
    uint64_t readings[READING_COUNT];
    const struct aie_mig *mig;    /* the instance, when the handle is one's; else NULL */
    struct aie_gpu gpu;
    struct aie_process processes[AIE_MAX_PROCESSES];
};

/* door.c */
nvmlReturn_t door_system(enum function function);
nvmlReturn_t door_device(enum function function, nvmlDevice_t device, struct view **view);
nvmlReturn_t door_peek(nvmlDevice_t device, uint32_t *slot, int *mig);
nvmlDevice_t door_handle(uint32_t index, int mig);
nvmlDevice_t door_handle_of_slot(uint32_t slot, int mig);
uint32_t door_count(void);
int door_attached(uint32_t slot);
int door_open(void);
struct aie_state *door_state(void);
void door_copy_config(size_t offset, void *to, size_t size);
nvmlReturn_t door_field_fault(uint32_t field, uint32_t slot);
void door_copy_gpu(uint32_t slot, struct aie_gpu *gpu);
uint64_t door_monotonic_ns(void);
void door_sleep_us(uint64_t us);
uint32_t door_change(void);
void door_sleep_until_changed(uint32_t seen, uint64_t at_most_ns);

/* model.c */
uint64_t model_now_ns(uint64_t *epoch_us);
void model_fill(struct view *view);
void model_readings_at(const struct aie_gpu *gpu, uint64_t at_ns, uint64_t readings[READING_COUNT]);
double model_load(const struct aie_gpu *gpu, uint64_t at_ns);
const uint64_t *model_counters(const struct view *view);
uint64_t model_instance_busy_ns(const struct view *view, int mig);
double model_share(enum reading reading);
void model_profiled(const struct view *view);

/* A call on a GPU or a MIG instance: `view` is what it sees. */
#define ENTER_DEVICE(name, device)                                  \
    struct view *view;                                              \
    nvmlReturn_t refused = door_device(FN_##name, device, &view);   \
    if (refused != NVML_SUCCESS)                                    \
        return refused

#define ENTER_SYSTEM(name)                                          \
    nvmlReturn_t refused = door_system(FN_##name);                  \
    if (refused != NVML_SUCCESS)                                    \
        return refused

#define REQUIRE(condition, error)                                   \
    do {                                                            \
        if (!(condition))                                           \
            return (error);                                         \
    } while (0)

#define HAS(flag) (view->gpu.flags & (flag))
#define READ(reading) (view->readings[R_##reading])
#define ROWS(table) (sizeof(table) / sizeof(table)[0])
#define ALL_LINKS 0xFFFFFFFFu

#define REQUIRE_OUTPUT(pointer) REQUIRE((pointer) != NULL, NVML_ERROR_INVALID_ARGUMENT)

nvmlReturn_t put_text(const char *text, char *to, unsigned int size);

#endif
