/* The mapped state file: what a simulated host looks like, written by controller.py and read by every process that loads the
 * stand-in.
 *
 * This header is the one description of the layout. layout.py reads it, so keep to its grammar: one member a line, the types
 * uint32_t, int32_t, uint64_t, int64_t, double, char[N] and struct, sizes that are numbers or names defined here.
 *
 * The file is a struct aie_state. `config` is written by the controller alone, whole, between two increments of `sequence` (odd
 * while it writes), so a reader that sees the same even number before and after has not seen half a change. `live` is written by
 * the library with atomic operations alone: it never needs a lock that a killed process could hold. */
#ifndef AIE_STATE_H
#define AIE_STATE_H

#include <stdint.h>

#define AIE_STATE_MAGIC 0x55504765
#define AIE_STATE_VERSION 2

#define AIE_MAX_GPUS 16
#define AIE_MAX_MIG 7
#define AIE_MAX_LINKS 18
#define AIE_MAX_PROCESSES 256
#define AIE_MAX_FUNCTIONS 256
#define AIE_MAX_EVENTS 64
#define AIE_MAX_FIELD_FAULTS 16
#define AIE_MAX_READINGS 64
#define AIE_MAX_COUNTERS 64
#define AIE_MAX_PAGES 8
#define AIE_PCIE_ERRORS 11
#define AIE_PACKET_ERRORS 12

#define AIE_GPM_FAULT 0x10000              /* metric n of GPM fails when field AIE_GPM_FAULT + n does */

/* flags of a GPU: what the product has */
#define AIE_HAS_GPM 1
#define AIE_HAS_MIG 2
#define AIE_HAS_ECC 4
#define AIE_HAS_MEMORY 8
#define AIE_HAS_MEMORY_TEMPERATURE 16
#define AIE_HAS_POWER_LIMIT 32
#define AIE_HAS_ENERGY 64
#define AIE_LINK_DOWNSHIFTS 128
#define AIE_RETIRES_PAGES 256              /* before Ampere; later products remap rows instead */
#define AIE_IS_NUMA_NODE 512               /* its memory is a NUMA node of the host, as on Grace */
#define AIE_HAS_NVLINK5 1024               /* from Blackwell on: links count packets, by fields of their own, each link apart */

/* kinds of a process; one process may have several */
#define AIE_COMPUTE 1
#define AIE_GRAPHICS 2
#define AIE_MPS 4

/* a percentage that follows the load of the GPU */
#define AIE_FOLLOWS_LOAD 0xFFFFFFFE

/* what a call to one function does besides its work */
struct aie_function {
    int32_t error;                        /* returned on every GPU and on calls that concern none; 0: none */
    int32_t gpu_error[AIE_MAX_GPUS];      /* returned on this GPU only */
    uint32_t delay_us;                    /* how long the call takes; a long one ends early when this is lowered */
    uint32_t delay_gpus;                  /* bit n: the delay is for GPU n; 0: for all */
    uint32_t reserved;
};

/* a value that the model computes, or a fixed one */
struct aie_reading {
    uint64_t value;
    uint64_t fixed;                       /* 1: `value` is returned as it stands, garbage included */
};

struct aie_process {
    uint64_t used_bytes;                  /* all bits set: not available, as on a virtual or a display-model host */
    double growth_bytes_per_s;
    uint64_t since_ns;                    /* simulated time from which it grows */
    int64_t sample_age_us;                /* its utilisation samples are this old */
    uint32_t pid;
    uint32_t kinds;
    uint32_t sm_percent;
    uint32_t memory_percent;
    uint32_t encoder_percent;
    uint32_t decoder_percent;
    uint32_t gpu_instance;                /* all bits set: none */
    uint32_t compute_instance;
};

struct aie_link {
    uint64_t crc_flit_errors;
    uint64_t crc_data_errors;
    uint64_t replay_errors;
    uint64_t recovery_errors;
    uint64_t ecc_errors;
    uint64_t packet_errors[AIE_PACKET_ERRORS];    /* NVLink 5: fields 206 to 215, 219 and 221 */
    uint32_t active;
    uint32_t remote_type;                 /* 0 GPU, 2 switch */
    uint32_t remote_bus;
    uint32_t reserved;
};

struct aie_mig {
    char uuid[80];
    char profile[32];                     /* such as 1g.10gb */
    uint64_t memory_total_bytes;
    uint64_t memory_reserved_bytes;
    double load_ratio;
    uint32_t present;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t multiprocessors;
    uint32_t gpu_slices;
    uint32_t compute_slices;
    uint32_t copy_engines;
    uint32_t decoders;
};

struct aie_gpu {
    char name[96];
    char uuid[80];
    char serial[32];
    char vbios[32];
    char part_number[80];
    uint64_t memory_total_bytes;
    uint64_t memory_reserved_bytes;
    uint64_t memory_baseline_bytes;       /* used although no process holds it */
    uint64_t bar1_total_bytes;
    uint64_t bar1_used_bytes;
    uint64_t clock_reasons;               /* held down for these reasons, besides those that follow from the load */
    uint64_t clock_reasons_supported;
    uint64_t cpu_affinity;                /* bit n: CPU n */
    uint64_t ecc_corrected_volatile;
    uint64_t ecc_uncorrected_volatile;
    uint64_t ecc_corrected_aggregate;
    uint64_t ecc_uncorrected_aggregate;
    uint64_t retired_pages_single[AIE_MAX_PAGES];
    uint64_t retired_pages_double[AIE_MAX_PAGES];
    double load_ratio;                    /* mean share of time that kernels run */
    double load_swing_ratio;              /* it moves around the mean by this much */
    double load_period_s;
    double load_phase_ratio;              /* where in the period it starts */
    uint32_t present;                     /* 0: not counted at the next nvmlInit, as after a removal */
    uint32_t lost;                        /* 1: every call on it returns GPU_IS_LOST */
    uint32_t flags;
    uint32_t architecture;
    uint32_t brand;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t multiprocessors;
    uint32_t cores;
    uint32_t memory_bus_bits;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t minor_number;
    int32_t numa_node;                    /* -1: not known */
    uint32_t topology_group;              /* GPUs of one group share a PCIe switch */
    uint32_t persistence_mode;
    uint32_t compute_mode;
    uint32_t display_active;
    uint32_t fans;
    uint32_t power_default_mw;
    uint32_t power_limit_mw;
    uint32_t power_minimum_mw;
    uint32_t power_maximum_mw;
    uint32_t power_idle_mw;
    uint32_t power_profiled_mw;           /* it draws at least this for 2 s after somebody took a sample of GPM; 0: no more than else */
    uint32_t clock_max_sm_mhz;
    uint32_t clock_max_memory_mhz;
    uint32_t clock_max_video_mhz;
    uint32_t clock_idle_mhz;
    uint32_t temperature_shutdown_c;
    uint32_t temperature_slowdown_c;
    uint32_t temperature_gpu_max_c;
    uint32_t temperature_memory_max_c;
    uint32_t temperature_idle_c;
    uint32_t pcie_max_generation;         /* of card and slot together */
    uint32_t pcie_max_width;
    uint32_t pcie_device_generation;      /* of the card alone */
    uint32_t pcie_generation;             /* negotiated */
    uint32_t pcie_width;
    uint32_t pcie_replays;
    uint32_t link_count;
    uint32_t link_version;
    uint32_t link_mb_per_s;               /* one NVLink, one direction */
    uint32_t remapped_corrected;
    uint32_t remapped_uncorrected;
    uint32_t remapped_pending;
    uint32_t remapped_failed;
    uint32_t retired_single_count;
    uint32_t retired_double_count;
    uint32_t retired_pending;
    uint32_t recovery_action;
    uint32_t pcie_errors[AIE_PCIE_ERRORS];    /* fields 173 to 183 */
    uint32_t c2c_link_count;              /* between CPU and GPU of one package */
    uint32_t c2c_link_mb_per_s;
    uint32_t mig_mode;
    uint32_t mig_pending_mode;
    uint32_t mig_max_devices;
    uint32_t mig_hides_processes;         /* 1: who has no privilege sees processes in the lists of the instances alone */
    uint32_t process_count;
    struct aie_reading readings[AIE_MAX_READINGS];
    struct aie_link links[AIE_MAX_LINKS];
    struct aie_mig mig[AIE_MAX_MIG];
};

struct aie_event {
    uint64_t type;
    uint64_t data;
    uint32_t slot;                        /* which GPU of the file */
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t reserved;
};

struct aie_field_fault {
    uint32_t field;
    int32_t error;
    uint32_t gpus;                        /* bit n: for GPU n; 0: for all */
    uint32_t reserved;
};

struct aie_processes {
    struct aie_process entries[AIE_MAX_PROCESSES];
};

struct aie_config {
    char driver_version[80];
    char nvml_version[80];
    uint64_t origin_monotonic_ns;         /* simulated time is origin_simulated_ns here ... */
    uint64_t origin_simulated_ns;
    uint64_t epoch_us;                    /* ... and simulated time 0 is this since 1970 */
    double time_scale;                    /* and runs so many times as fast as the clock */
    uint64_t events_pushed;               /* the ring's newest is events_pushed - 1 */
    uint32_t frozen;                      /* 1: simulated time stands still */
    uint32_t gpu_count;
    uint32_t cuda_version;                /* 12040 is 12.4 */
    uint32_t process_info_bytes;          /* of one _v3 entry: 24, or 32 as the first 535 drivers had it */
    uint32_t field_fault_count;
    uint32_t reserved;
    struct aie_field_fault field_faults[AIE_MAX_FIELD_FAULTS];
    struct aie_event events[AIE_MAX_EVENTS];
    struct aie_function functions[AIE_MAX_FUNCTIONS];
    struct aie_gpu gpus[AIE_MAX_GPUS];
    struct aie_processes processes[AIE_MAX_GPUS];
};

struct aie_live_gpu {
    uint64_t integrated_ns;               /* simulated time up to which the counters stand */
    uint64_t counters[AIE_MAX_COUNTERS];
    uint64_t mig_busy_ns[AIE_MAX_MIG];
    uint64_t profiled_ns;                 /* simulated time of the newest sample of GPM, and 1; 0: there was none */
};

struct aie_live {
    uint64_t calls[AIE_MAX_FUNCTIONS];
    struct aie_live_gpu gpus[AIE_MAX_GPUS];
};

struct aie_state {
    uint32_t magic;
    uint32_t version;
    uint64_t size;
    uint64_t sequence;
    struct aie_config config;
    struct aie_live live;
};

#endif
