/* The door: start and end of a session, handles, and what every call goes through first (errors, delays, lost GPUs, counting). */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_US 2000          /* a long delay is slept in slices, so that it can be called off */
#define WRITER_DIED_NS 1000000000ull

enum scope { SYSTEM, GPU, ANY };

static const enum scope scopes[FUNCTION_COUNT] = {
#define FUNCTION(name, since, scope) [FN_##name] = scope,
#include "functions.def"
#undef FUNCTION
};

/* A handle is the address of one of these: nothing else is ever read through a pointer that a caller made up. */
struct aie_handle { char unused; };
static struct aie_handle handles[AIE_MAX_GPUS][1 + AIE_MAX_MIG];

static _Atomic(struct aie_state *) mapped;
static atomic_int detached;
static atomic_uint sessions;
static atomic_uint attached_count;
static uint32_t slot_of_index[AIE_MAX_GPUS];
static _Thread_local struct view thread_view;

uint64_t door_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void door_sleep_us(uint64_t us)
{
    struct timespec span = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };
    while (nanosleep(&span, &span) != 0)
        ;
}

struct aie_state *door_state(void) { return atomic_load(&mapped); }
uint32_t door_count(void) { return atomic_load(&attached_count); }
int door_open(void) { return atomic_load(&sessions) > 0; }

/* The half of the sequence that every change changes, of a state file as the kernel waits for it: by the file, so that a controller in
 * another process wakes who sleeps here. */
static uint32_t *change_word(struct aie_state *state)
{
    return (uint32_t *)&state->sequence + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

uint32_t door_change(void) { return __atomic_load_n(change_word(door_state()), __ATOMIC_ACQUIRE); }

/* Returns when the configuration is another than at `door_change`, when something else is to be looked at, or after this time. */
void door_sleep_until_changed(uint32_t seen, uint64_t at_most_ns)
{
    struct timespec span = { .tv_sec = (time_t)(at_most_ns / 1000000000ull), .tv_nsec = (long)(at_most_ns % 1000000000ull) };
    syscall(SYS_futex, change_word(door_state()), FUTEX_WAIT, seen, &span, NULL, 0);
}

static void wake_sleepers(void)
{
    struct aie_state *state = door_state();
    if (state != NULL)
        syscall(SYS_futex, change_word(state), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct aie_state *map_file(const char *path)
{
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return NULL;
    struct stat status;
    struct aie_state *state = MAP_FAILED;
    if (fstat(descriptor, &status) == 0 && (size_t)status.st_size >= sizeof *state)
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (state == MAP_FAILED)
        return NULL;
    if (state->magic != AIE_STATE_MAGIC || state->version != AIE_STATE_VERSION || state->size != sizeof *state) {
        munmap(state, sizeof *state);
        return NULL;
    }
    return state;
}

/* Not of NVML: which state file this process follows from now on; NULL: none, as if no driver were loaded. Returns 0, or -1 when
 * the file is none of this version. The earlier mapping stays, as another thread may be reading it; sessions end, as they would
 * with the driver they belonged to. */
int aie_stand_in_attach(const char *path)
{
    struct aie_state *state = path != NULL ? map_file(path) : NULL;
    if (path != NULL && state == NULL)
        return -1;
    atomic_store(&sessions, 0);
    atomic_store(&detached, path == NULL);
    wake_sleepers();
    if (state != NULL)
        atomic_store(&mapped, state);
    return 0;
}

/* When the library is unloaded the file goes with it. Not while a session is open: at the end of a process another thread may still
 * be in a call. */
__attribute__((destructor)) static void let_go(void)
{
    struct aie_state *state = atomic_load(&mapped);
    if (state != NULL && atomic_load(&sessions) == 0)
        munmap(state, sizeof *state);
}

static struct aie_state *attach_from_environment(void)
{
    struct aie_state *state = door_state();
    const char *path = getenv("AIE_SIMULATED_GPUS");
    if (state == NULL && path != NULL && aie_stand_in_attach(path) == 0)
        state = door_state();
    return state;
}

/* Copies part of the configuration as it stood at one moment. A writer that died half way holds nobody up for ever: after a second
 * its change is taken as it is, and so is every later copy until somebody writes again. */
void door_copy_config(size_t offset, void *to, size_t size)
{
    static _Atomic uint64_t abandoned;
    struct aie_state *state = door_state();
    const char *from = (const char *)&state->config + offset;
    uint64_t give_up_ns = 0;
    for (;;) {
        uint64_t before = __atomic_load_n(&state->sequence, __ATOMIC_ACQUIRE);
        memcpy(to, from, size);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        int whole = (before & 1) == 0 && __atomic_load_n(&state->sequence, __ATOMIC_RELAXED) == before;
        if (whole || ((before & 1) && before == atomic_load(&abandoned)))
            return;
        if (give_up_ns == 0)
            give_up_ns = door_monotonic_ns() + WRITER_DIED_NS;
        else if ((before & 1) && door_monotonic_ns() > give_up_ns)
            atomic_store(&abandoned, before);
        sched_yield();
    }
}

#define COPY_CONFIG(member, to) door_copy_config(offsetof(struct aie_config, member), &(to), sizeof(to))

static void copy_function(enum function function, struct aie_function *to)
{
    door_copy_config(offsetof(struct aie_config, functions) + function * sizeof *to, to, sizeof *to);
}

/* Spends the time that the call takes. The delay is read again at every slice: a hang ends when the controller lifts it. */
static void spend_delay(enum function function, int slot)
{
    uint64_t spent_us = 0;
    for (;;) {
        struct aie_function row;
        copy_function(function, &row);
        int concerned = row.delay_gpus == 0 || (slot >= 0 && (row.delay_gpus >> slot & 1));
        if (!concerned || spent_us >= row.delay_us)
            return;
        uint64_t slice_us = row.delay_us - spent_us < SLICE_US ? row.delay_us - spent_us : SLICE_US;
        door_sleep_us(slice_us);
        spent_us += slice_us;
    }
}

static nvmlReturn_t count_and_fail(enum function function, int slot)
{
    struct aie_function row;
    __atomic_fetch_add(&door_state()->live.calls[function], 1, __ATOMIC_RELAXED);
    spend_delay(function, slot);
    copy_function(function, &row);
    if (row.error != 0)
        return (nvmlReturn_t)row.error;
    return slot >= 0 ? (nvmlReturn_t)row.gpu_error[slot] : NVML_SUCCESS;
}

nvmlReturn_t door_system(enum function function)
{
    REQUIRE(door_open(), NVML_ERROR_UNINITIALIZED);
    return count_and_fail(function, -1);
}

/* Which GPU (of the file) and which instance a handle means, without reading through it. */
nvmlReturn_t door_peek(nvmlDevice_t device, uint32_t *slot, int *mig)
{
    uintptr_t first = (uintptr_t)&handles[0][0];
    uintptr_t place = (uintptr_t)device;
    REQUIRE(place >= first && place < first + sizeof handles, NVML_ERROR_INVALID_ARGUMENT);
    size_t number = (place - first) / sizeof(struct aie_handle);
    *slot = (uint32_t)(number / (1 + AIE_MAX_MIG));
    *mig = (int)(number % (1 + AIE_MAX_MIG)) - 1;
    return NVML_SUCCESS;
}

nvmlDevice_t door_handle_of_slot(uint32_t slot, int mig) { return &handles[slot][mig + 1]; }
nvmlDevice_t door_handle(uint32_t index, int mig) { return door_handle_of_slot(slot_of_index[index], mig); }

int door_attached(uint32_t slot)
{
    for (uint32_t index = 0; index < door_count(); index++)
        if (slot_of_index[index] == slot)
            return (int)index;
    return -1;
}

void door_copy_gpu(uint32_t slot, struct aie_gpu *gpu)
{
    door_copy_config(offsetof(struct aie_config, gpus) + slot * sizeof *gpu, gpu, sizeof *gpu);
}

static void load_view(struct view *view, uint32_t slot, int mig)
{
    view->slot = slot;
    door_copy_gpu(slot, &view->gpu);
    if (view->gpu.process_count > AIE_MAX_PROCESSES)
        view->gpu.process_count = AIE_MAX_PROCESSES;
    door_copy_config(offsetof(struct aie_config, processes) + slot * sizeof(struct aie_processes), view->processes,
                     view->gpu.process_count * sizeof view->processes[0]);
    COPY_CONFIG(process_info_bytes, view->process_info_bytes);
    view->now_ns = model_now_ns(&view->epoch_us);
    view->mig = mig >= 0 ? &view->gpu.mig[mig] : NULL;
    model_fill(view);
}

nvmlReturn_t door_device(enum function function, nvmlDevice_t device, struct view **view)
{
    REQUIRE(door_open(), NVML_ERROR_UNINITIALIZED);
    uint32_t slot;
    int mig;
    nvmlReturn_t refused = door_peek(device, &slot, &mig);
    if (refused != NVML_SUCCESS)
        return refused;
    int index = door_attached(slot);
    REQUIRE(index >= 0, NVML_ERROR_INVALID_ARGUMENT);
    refused = count_and_fail(function, (int)slot);
    if (refused != NVML_SUCCESS)
        return refused;
    load_view(&thread_view, slot, mig);
    thread_view.index = (uint32_t)index;
    REQUIRE(!thread_view.gpu.lost, NVML_ERROR_GPU_IS_LOST);
    REQUIRE(mig < 0 || scopes[function] == ANY, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(mig < 0 || (thread_view.gpu.mig_mode && thread_view.mig->present), NVML_ERROR_INVALID_ARGUMENT);
    *view = &thread_view;
    return NVML_SUCCESS;
}

/* The GPUs that are there now are the GPUs of this session: what comes or goes later is seen after the next nvmlInit, as with a
 * driver. */
static void count_gpus(void)
{
    uint32_t count, found = 0;
    COPY_CONFIG(gpu_count, count);
    for (uint32_t slot = 0; slot < count && slot < AIE_MAX_GPUS; slot++) {
        uint32_t present;
        size_t gpu = offsetof(struct aie_config, gpus) + slot * sizeof(struct aie_gpu);
        door_copy_config(gpu + offsetof(struct aie_gpu, present), &present, sizeof present);
        if (present)
            slot_of_index[found++] = slot;
    }
    atomic_store(&attached_count, found);
}

/* A library only talks to the driver that it came with. This one to every driver, unless it was compiled as one version's. */
static int is_of_this_driver(void)
{
#ifdef AIE_LIBRARY_VERSION
    char driver_version[sizeof((struct aie_config *)0)->driver_version];
    COPY_CONFIG(driver_version, driver_version);
    return strncmp(driver_version, AIE_LIBRARY_VERSION, sizeof driver_version) == 0;
#else
    return 1;
#endif
}

static nvmlReturn_t init(enum function function)
{
    REQUIRE(!atomic_load(&detached) && attach_from_environment() != NULL, NVML_ERROR_DRIVER_NOT_LOADED);
    nvmlReturn_t refused = count_and_fail(function, -1);
    if (refused != NVML_SUCCESS)
        return refused;
    REQUIRE(is_of_this_driver(), NVML_ERROR_LIB_RM_VERSION_MISMATCH);
    if (atomic_load(&sessions) == 0)
        count_gpus();
    atomic_fetch_add(&sessions, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return init(FN_nvmlInit); }
nvmlReturn_t nvmlInit_v2(void) { return init(FN_nvmlInit_v2); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return init(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER_SYSTEM(nvmlShutdown);
    atomic_fetch_sub(&sessions, 1);
    wake_sleepers();
    return NVML_SUCCESS;
}

nvmlReturn_t door_field_fault(uint32_t field, uint32_t slot)
{
    struct aie_field_fault rows[AIE_MAX_FIELD_FAULTS];
    uint32_t count;
    COPY_CONFIG(field_fault_count, count);
    if (count == 0)
        return NVML_SUCCESS;
    COPY_CONFIG(field_faults, rows);
    for (uint32_t row = 0; row < count && row < AIE_MAX_FIELD_FAULTS; row++)
        if (rows[row].field == field && (rows[row].gpus == 0 || (rows[row].gpus >> slot & 1)))
            return (nvmlReturn_t)rows[row].error;
    return NVML_SUCCESS;
}

nvmlReturn_t put_text(const char *text, char *to, unsigned int size)
{
    REQUIRE_OUTPUT(to);
    size_t length = strnlen(text, 96);
    REQUIRE(length < size, NVML_ERROR_INSUFFICIENT_SIZE);
    memcpy(to, text, length);
    to[length] = '\0';
    return NVML_SUCCESS;
}
