/* SPDX-License-Identifier: Apache-2.0
 *
 * Which process the kernel chose to kill for lack of memory. Field offsets come from tracefs (tracepoints.py): before 6.8 the
 * tracepoint has the pid only. Sizes are in KiB there.
 */
struct oom_kill {
    u64 anon_kib;
    u64 file_kib;
    u64 shmem_kib;
    u32 tgid;
    u32 has_sizes;
    char command[16];
};
BPF_RINGBUF_OUTPUT(oom_kills, 4);

int mark_victim(char *args) {
    struct oom_kill *kill = oom_kills.ringbuf_reserve(sizeof(*kill));
    if (!kill) {
        note_lost(LOST_EVENT);
        return 0;
    }
    kill->tgid = *(u32 *)(args + OOM_PID);
    kill->anon_kib = kill->file_kib = kill->shmem_kib = 0;
    kill->has_sizes = 0;
    __builtin_memset(kill->command, 0, sizeof(kill->command));
#ifdef OOM_COMM
    kill->has_sizes = 1;
    kill->anon_kib = *(u64 *)(args + OOM_ANON_RSS);
    kill->file_kib = *(u64 *)(args + OOM_FILE_RSS);
    kill->shmem_kib = *(u64 *)(args + OOM_SHMEM_RSS);
    bpf_probe_read_kernel_str(kill->command, sizeof(kill->command), args + (*(u32 *)(args + OOM_COMM) & 0xffff));
#endif
    oom_kills.ringbuf_submit(kill, 0);
    return 0;
}
