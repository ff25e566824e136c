/* SPDX-License-Identifier: Apache-2.0
 *
 * How long block devices take, host-wide: from when the driver gets a request until it has completed.
 */
struct request {
    u64 sector;
    u64 device;
};
struct device {
    u32 device;
    u32 op; /* first letter of rwbs: R, W, or another */
};
struct device_use {
    struct histogram seconds;
    u64 bytes;
};
/* A request that is merged or fails over never completes under its own name, and stays, until user space makes room (lost.py). */
#ifndef REQUESTS_ENTRIES
#define REQUESTS_ENTRIES 8192
#endif
BPF_TABLE("hash", struct request, u64, requests, REQUESTS_ENTRIES);
/* The zero that a new entry begins with is too large for the stack. */
BPF_ARRAY(no_use, struct device_use, 1);
BPF_TABLE("hash", struct device, struct device_use, devices, 512);

TRACEPOINT_PROBE(block, block_rq_issue) {
    struct request request = {.sector = args->sector, .device = args->dev};
    u64 now = bpf_ktime_get_ns();
    if (requests.update(&request, &now)) note_lost(LOST_REQUEST);
    return 0;
}

/* A flush has no sector: 0 at its issue, and all ones when it completes. */
#define NO_SECTOR ((u64)-1)

TRACEPOINT_PROBE(block, block_rq_complete) {
    struct request request = {.sector = args->sector == NO_SECTOR ? 0 : args->sector, .device = args->dev};
    u64 *start = requests.lookup(&request);
    if (!start) return 0;
    u64 ns = bpf_ktime_get_ns() - *start;
    requests.delete(&request);
    struct device device = {.device = args->dev, .op = args->rwbs[0]};
    struct device_use *use = devices.lookup(&device);
    if (!use) {
        int first = 0;
        struct device_use *none = no_use.lookup(&first);
        if (!none) return 0;
        use = devices.lookup_or_try_init(&device, none);
    }
    if (!use) {
        note_lost(LOST_BLOCK);
        return 0;
    }
    observe_ns(&use->seconds, ns);
    __sync_fetch_and_add(&use->bytes, (u64)args->nr_sector * 512);
    return 0;
}
