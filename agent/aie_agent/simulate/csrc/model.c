/* How a simulated GPU behaves: a function of its state and of simulated time, so that every process that asks sees the same. */
#define _GNU_SOURCE
#include "standin.h"

#include <math.h>

#define IDLE_LOAD 0.01
#define IDLE_MEMORY_MHZ 405
#define PROFILED_NS 2000000000ull   /* so long a GPU stays awake after a sample */
#define SUB_STEP_NS 100000000ull   /* counters are integrated in steps of 0.1 s ... */
#define SUB_STEPS_MAX 256          /* ... or, after a long silence, in this many */

static double clamp(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

uint64_t model_now_ns(uint64_t *epoch_us)
{
    struct { uint64_t origin_monotonic_ns, origin_simulated_ns, epoch_us; double time_scale; } clock;
    uint32_t frozen;
    door_copy_config(offsetof(struct aie_config, origin_monotonic_ns), &clock, sizeof clock);
    door_copy_config(offsetof(struct aie_config, frozen), &frozen, sizeof frozen);
    *epoch_us = clock.epoch_us;
    uint64_t monotonic_ns = door_monotonic_ns();
    if (frozen || monotonic_ns <= clock.origin_monotonic_ns)
        return clock.origin_simulated_ns;
    return clock.origin_simulated_ns + (uint64_t)((double)(monotonic_ns - clock.origin_monotonic_ns) * clock.time_scale);
}

double model_load(const struct aie_gpu *gpu, uint64_t at_ns)
{
    double load = gpu->load_ratio;
    if (gpu->load_swing_ratio != 0 && gpu->load_period_s > 0)
        load += gpu->load_swing_ratio * sin(2 * M_PI * ((double)at_ns / 1e9 / gpu->load_period_s + gpu->load_phase_ratio));
    return clamp(load, 0, 1);
}

/* How far each reason holds the clocks down. The figures are invented, their order is not: hardware slowdown halves the clocks. */
static const struct { uint64_t bits; double factor; } slowdowns[] = {
    { 0x80, 0.40 },    /* power brake */
    { 0x08, 0.50 },    /* hardware slowdown */
    { 0x40, 0.50 },    /* hardware thermal */
    { 0x20, 0.70 },    /* software thermal */
    { 0x200, 0.75 },   /* board limit */
    { 0x400, 0.90 },   /* reliability */
    { 0x02, 0.90 },    /* application clocks */
};

static double clock_factor(uint64_t reasons)
{
    double factor = 1;
    for (size_t row = 0; row < ROWS(slowdowns); row++)
        if ((reasons & slowdowns[row].bits) && slowdowns[row].factor < factor)
            factor = slowdowns[row].factor;
    return factor;
}

/* MB/s of one lane and direction, by generation */
static const double lane_mb_per_s[] = { 0, 250, 500, 985, 1969, 3938, 7563 };

static double pcie_mb_per_s(uint64_t generation, uint64_t width)
{
    size_t last = ROWS(lane_mb_per_s) - 1;
    return lane_mb_per_s[generation > last ? last : generation] * (double)width;
}

/* Shares of the load: what a transformer that decodes keeps busy, roughly. DRAM leads, tensor cores wait. */
static const struct { enum reading reading; double share; } shares_ppm[] = {
    { R_graphics_ppm, 1.00 }, { R_sm_ppm, 0.82 },   { R_occupancy_ppm, 0.36 }, { R_integer_ppm, 0.18 }, { R_tensor_ppm, 0.44 },
    { R_hmma_ppm, 0.42 },     { R_imma_ppm, 0.02 }, { R_dram_ppm, 0.63 },      { R_fp32_ppm, 0.12 },    { R_fp16_ppm, 0.06 },
};

double model_share(enum reading reading)
{
    for (size_t row = 0; row < ROWS(shares_ppm); row++)
        if (shares_ppm[row].reading == reading)
            return shares_ppm[row].share;
    return 0;
}

static double power_wanted_mw(const struct aie_gpu *gpu, double load, double factor)
{
    return gpu->power_idle_mw + ((double)gpu->power_default_mw - gpu->power_idle_mw) * load * factor * factor;
}

static void fill_power_and_clocks(const struct aie_gpu *gpu, double load, uint64_t *r)
{
    int active = load > IDLE_LOAD;
    uint64_t reasons = gpu->clock_reasons | (active ? 0 : 1);
    double factor = clock_factor(reasons);
    double power_mw = power_wanted_mw(gpu, load, factor);
    if (power_mw > gpu->power_limit_mw) {
        /* The limit is kept by slowing down: power goes with the square of the clock here. */
        double idle_mw = gpu->power_idle_mw;
        double excess = power_mw - idle_mw;
        factor *= excess > 0 ? sqrt(clamp((gpu->power_limit_mw - idle_mw) / excess, 0.04, 1)) : 1;
        power_mw = gpu->power_limit_mw;
        reasons |= 0x4;
    }
    double sm_mhz = active ? gpu->clock_max_sm_mhz * factor : gpu->clock_idle_mhz;
    double heat = power_mw / (gpu->power_default_mw ? gpu->power_default_mw : 1);
    int hot = (reasons & 0x60) != 0;
    r[R_power_mw] = (uint64_t)power_mw;
    r[R_clock_reasons] = reasons;
    r[R_sm_mhz] = (uint64_t)sm_mhz;
    r[R_graphics_mhz] = (uint64_t)sm_mhz;
    r[R_video_mhz] = (uint64_t)(sm_mhz * gpu->clock_max_video_mhz / (gpu->clock_max_sm_mhz ? gpu->clock_max_sm_mhz : 1));
    /* Products that let their link go when idle go to P8 with it; the others stay in P0. */
    int rests = !active && (gpu->flags & AIE_LINK_DOWNSHIFTS);
    r[R_memory_mhz] = rests ? IDLE_MEMORY_MHZ : gpu->clock_max_memory_mhz;
    r[R_performance_state] = rests ? 8 : 0;
    r[R_temperature_c] = hot ? gpu->temperature_slowdown_c : (uint64_t)(gpu->temperature_idle_c + 38 * heat);
    r[R_memory_temperature_c] = r[R_temperature_c] + 8;
    r[R_fan_percent] = (uint64_t)(30 + 50 * clamp(heat, 0, 1));
}

static void fill_links(const struct aie_gpu *gpu, double load, uint64_t *r)
{
    int idle = load <= IDLE_LOAD;
    r[R_pcie_generation] = idle && (gpu->flags & AIE_LINK_DOWNSHIFTS) ? 1 : gpu->pcie_generation;
    r[R_pcie_width] = gpu->pcie_width;
    double pcie_kb = pcie_mb_per_s(r[R_pcie_generation], r[R_pcie_width]) * 1000;
    /* Different shares, so that a swapped direction shows. */
    r[R_pcie_rx_kb_per_s] = (uint64_t)(pcie_kb * 0.06 * load);
    r[R_pcie_tx_kb_per_s] = (uint64_t)(pcie_kb * 0.02 * load);
    uint32_t active = 0;
    for (uint32_t link = 0; link < gpu->link_count && link < AIE_MAX_LINKS; link++)
        active += gpu->links[link].active;
    double nvlink_kib = active * (double)gpu->link_mb_per_s * 1e6 / 1024;
    r[R_nvlink_tx_kib_per_s] = (uint64_t)(nvlink_kib * 0.15 * load);
    r[R_nvlink_rx_kib_per_s] = (uint64_t)(nvlink_kib * 0.12 * load);
}

/* Everything but memory, which needs the processes. */
void model_readings_at(const struct aie_gpu *gpu, uint64_t at_ns, uint64_t r[READING_COUNT])
{
    double load = model_load(gpu, at_ns);
    memset(r, 0, READING_COUNT * sizeof r[0]);
    r[R_gpu_percent] = (uint64_t)(100 * load + 0.5);
    r[R_memory_percent] = (uint64_t)(63 * load + 0.5);
    fill_power_and_clocks(gpu, load, r);
    fill_links(gpu, load, r);
    for (size_t row = 0; row < ROWS(shares_ppm); row++)
        r[shares_ppm[row].reading] = (uint64_t)(shares_ppm[row].share * load * 1e6);
    for (size_t reading = 0; reading < READING_COUNT; reading++)
        if (gpu->readings[reading].fixed)
            r[reading] = gpu->readings[reading].value;
}

/* Gives every process what it asks for as long as there is room: sum + baseline + reserved + free is always the total. */
static uint64_t settle_processes(struct view *view, uint64_t room)
{
    uint64_t left = room;
    for (uint32_t row = 0; row < view->gpu.process_count; row++) {
        struct aie_process *process = &view->processes[row];
        if (process->used_bytes == UINT64_MAX)
            continue;
        if (process->growth_bytes_per_s != 0 && view->now_ns > process->since_ns) {
            double elapsed_s = (double)(view->now_ns - process->since_ns) / 1e9;
            double grown = (double)process->used_bytes + process->growth_bytes_per_s * elapsed_s;
            process->used_bytes = grown < 0 ? 0 : (uint64_t)grown;
        }
        if (process->used_bytes > left)
            process->used_bytes = left;
        left -= process->used_bytes;
    }
    return left;
}

static uint64_t instance_used(const struct view *view, const struct aie_mig *mig)
{
    uint64_t used = 0;
    for (uint32_t row = 0; row < view->gpu.process_count; row++)
        if (view->processes[row].gpu_instance == mig->gpu_instance && view->processes[row].used_bytes != UINT64_MAX)
            used += view->processes[row].used_bytes;
    uint64_t room = mig->memory_total_bytes - mig->memory_reserved_bytes;
    return used < room ? used : room;
}

static void fill_memory(struct view *view, uint64_t *r)
{
    const struct aie_gpu *gpu = &view->gpu;
    uint64_t held = gpu->memory_reserved_bytes + gpu->memory_baseline_bytes;
    uint64_t room = gpu->memory_total_bytes > held ? gpu->memory_total_bytes - held : 0;
    /* Where the GPU has no memory of its own, processes have the host's, and the GPU sets no bound. */
    int bounded = (gpu->flags & AIE_HAS_MEMORY) != 0;
    uint64_t free_bytes = settle_processes(view, bounded ? room : UINT64_MAX);
    if (!bounded)
        free_bytes = room;
    r[R_memory_total_bytes] = gpu->memory_total_bytes;
    r[R_memory_reserved_bytes] = gpu->memory_reserved_bytes;
    r[R_memory_free_bytes] = free_bytes;
    r[R_memory_used_bytes] = gpu->memory_baseline_bytes + room - free_bytes;
    if (view->mig != NULL) {
        r[R_memory_total_bytes] = view->mig->memory_total_bytes;
        r[R_memory_reserved_bytes] = view->mig->memory_reserved_bytes;
        r[R_memory_used_bytes] = instance_used(view, view->mig);
        r[R_memory_free_bytes] = view->mig->memory_total_bytes - view->mig->memory_reserved_bytes - r[R_memory_used_bytes];
    }
    for (size_t reading = R_memory_total_bytes; reading <= R_memory_free_bytes; reading++)
        if (gpu->readings[reading].fixed)
            r[reading] = gpu->readings[reading].value;
}

void model_profiled(const struct view *view)
{
    __atomic_store_n(&door_state()->live.gpus[view->slot].profiled_ns, view->now_ns + 1, __ATOMIC_RELAXED);
}

/* Counters that are sampled keep a GPU from resting: it draws what it draws awake, though it does nothing. */
static void fill_power_of_profiling(const struct view *view, uint64_t *r)
{
    uint64_t sampled_ns = __atomic_load_n(&door_state()->live.gpus[view->slot].profiled_ns, __ATOMIC_RELAXED);
    int awake = sampled_ns != 0 && view->now_ns < sampled_ns + PROFILED_NS;
    if (awake && !view->gpu.readings[R_power_mw].fixed && r[R_power_mw] < view->gpu.power_profiled_mw)
        r[R_power_mw] = view->gpu.power_profiled_mw;
}

void model_fill(struct view *view)
{
    model_readings_at(&view->gpu, view->now_ns, view->readings);
    fill_power_of_profiling(view, view->readings);
    fill_memory(view, view->readings);
}

static const struct { enum counter counter; enum reading reading; double divisor; } rates[] = {
#define COUNTER(name, reading, divisor) { C_##name, R_##reading, divisor },
#define VIOLATION(name, bits)
#include "counters.def"
#undef COUNTER
#undef VIOLATION
};

static const struct { enum counter counter; uint64_t bits; } violations[] = {
#define COUNTER(name, reading, divisor)
#define VIOLATION(name, bits) { C_##name, bits },
#include "counters.def"
#undef COUNTER
#undef VIOLATION
};

static void integrate(const struct aie_gpu *gpu, uint64_t from_ns, uint64_t to_ns, double gained[COUNTER_COUNT])
{
    uint64_t steps = (to_ns - from_ns) / SUB_STEP_NS + 1;
    if (steps > SUB_STEPS_MAX)
        steps = SUB_STEPS_MAX;
    double step_ns = (double)(to_ns - from_ns) / (double)steps;
    uint64_t readings[READING_COUNT];
    for (uint64_t step = 0; step < steps; step++) {
        model_readings_at(gpu, from_ns + (uint64_t)(((double)step + 0.5) * step_ns), readings);
        for (size_t row = 0; row < ROWS(rates); row++)
            gained[rates[row].counter] += (double)readings[rates[row].reading] * step_ns / rates[row].divisor;
        for (size_t row = 0; row < ROWS(violations); row++)
            if (readings[R_clock_reasons] & violations[row].bits)
                gained[violations[row].counter] += step_ns;
    }
}

/* Brings the GPU's counters up to now. Whoever wins the time span adds what it is worth: no lock, and never backwards. */
static struct aie_live_gpu *bring_up_to_now(const struct view *view)
{
    struct aie_live_gpu *live = &door_state()->live.gpus[view->slot];
    uint64_t from_ns = __atomic_load_n(&live->integrated_ns, __ATOMIC_ACQUIRE);
    if (view->now_ns <= from_ns ||
        !__atomic_compare_exchange_n(&live->integrated_ns, &from_ns, view->now_ns, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return live;
    double gained[COUNTER_COUNT] = { 0 };
    integrate(&view->gpu, from_ns, view->now_ns, gained);
    for (size_t counter = 0; counter < COUNTER_COUNT; counter++)
        __atomic_fetch_add(&live->counters[counter], (uint64_t)(gained[counter] + 0.5), __ATOMIC_RELAXED);
    for (size_t mig = 0; mig < AIE_MAX_MIG; mig++) {
        double busy_ns = clamp(view->gpu.mig[mig].load_ratio, 0, 1) * (double)(view->now_ns - from_ns);
        __atomic_fetch_add(&live->mig_busy_ns[mig], (uint64_t)(busy_ns + 0.5), __ATOMIC_RELAXED);
    }
    return live;
}

const uint64_t *model_counters(const struct view *view)
{
    static _Thread_local uint64_t values[COUNTER_COUNT];
    const struct aie_live_gpu *live = bring_up_to_now(view);
    for (size_t counter = 0; counter < COUNTER_COUNT; counter++)
        values[counter] = __atomic_load_n(&live->counters[counter], __ATOMIC_RELAXED);
    return values;
}

uint64_t model_instance_busy_ns(const struct view *view, int mig)
{
    return __atomic_load_n(&bring_up_to_now(view)->mig_busy_ns[mig], __ATOMIC_RELAXED);
}
