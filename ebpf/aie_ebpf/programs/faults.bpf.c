/* SPDX-License-Identifier: Apache-2.0
 *
 * Page faults that needed the disk: the kernel's software event fires in the thread, when the page is there. The uninterruptible sleep
 * just before it was for that page. Needs threads and times of sched.bpf.c.
 */
int major_fault(void *ctx) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process || is_off(process, SET_FAULTS)) return 0;
    hit(process, SET_FAULTS);
    __sync_fetch_and_add(&process->major_faults, 1);
    struct thread *thread = threads.lookup(&tid);
    struct times *t = times.lookup(&tgid);
    if (thread && t && thread->disk_ns) {
        __sync_fetch_and_add(&t->page_fault_ns, thread->disk_ns);
        thread->disk_ns = 0;
    }
    return 0;
}
