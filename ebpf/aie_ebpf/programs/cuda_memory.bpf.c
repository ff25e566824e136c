/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory asked from the CUDA driver and not given back. A call is noted on entry and judged on return: what failed changes nothing.
 *
 * What is freed is taken out of `live` on entry already, and put back when the call fails: as soon as the driver has freed it,
 * another thread may be given the same address, before this one has returned.
 *
 * Memory of a context goes with it. Which context an allocation belongs to is not seen, so only the end of a process's last context
 * counts, and only where user space has found that the process had none when we came: then its generation rises, and user space
 * drops all of the one before. cuMemCreate's memory belongs to no context.
 */
/* The runtime's functions are close to those that call the driver for them: its code is less than 1 MB. */
#define SAME_LIBRARY (2 << 20)

static __always_inline bool is_near(u64 address, u64 function) {
    return address - function + SAME_LIBRARY < 2 * SAME_LIBRARY;
}

/* Whether a call of the driver, made from `from`, is made by a function of the runtime that has not returned yet. On x86 its return
 * address is still where it was then; a function that was called after it has put its own there, or lies above.
 */
static __always_inline bool is_inside(struct runtime_call *runtime, u64 sp, u64 from) {
#ifdef bpf_target_x86
    u64 there = 0;
    if (bpf_probe_read_user(&there, sizeof(there), (void *)runtime->sp) || there != runtime->caller) return false;
#endif
    return sp <= runtime->sp && is_near(from, runtime->function);
}

static __always_inline struct group group_of(struct allocation *a, u32 tgid) {
    struct group group = {.caller = a->caller, .tgid = tgid, .generation = a->generation, .kind = a->kind};
    group.size_class = slot_of(a->size, 63);
    return group;
}

static __always_inline void count_free(struct allocation *a, u32 tgid) {
    struct group group = group_of(a, tgid);
    struct group_use *use = groups.lookup(&group);
    if (!use) return; /* dropped meanwhile */
    __sync_fetch_and_add(&use->outstanding_bytes, -a->size);
    __sync_fetch_and_add(&use->outstanding, -1);
    __sync_fetch_and_add(&use->freed_bytes, a->size);
    __sync_fetch_and_add(&use->frees, 1);
}

static __always_inline void count_allocation(struct place *place, struct allocation *a) {
    struct group group = group_of(a, place->tgid);
    struct group_use none = {}, *use = groups.lookup_or_try_init(&group, &none);
    if (!use) {
        note_lost(LOST_GROUP);
        return;
    }
    __sync_fetch_and_add(&use->allocated_bytes, a->size);
    __sync_fetch_and_add(&use->allocations, 1);
    /* The driver gives out only what is free: the one before here was freed in a way that is not seen. */
    struct allocation *before = live.lookup(place);
    if (before) count_free(before, place->tgid);
    if (live.update(place, a)) { /* full: it is not outstanding, because its free will not be known */
        note_lost(LOST_ALLOCATION);
        return;
    }
    __sync_fetch_and_add(&use->outstanding_bytes, a->size);
    __sync_fetch_and_add(&use->outstanding, 1);
}

static __always_inline struct cuda_process *process_of(u32 tgid) {
    struct cuda_process none = {}, *process = cuda_processes.lookup_or_try_init(&tgid, &none);
    if (!process) note_lost(LOST_GROUP);
    return process;
}

/* One reference less, or none: the last context of the process may be gone with it. Not atomic: contexts do not come and go. */
static __always_inline void drop_context(struct context *context, bool wholly) {
    u64 *references = contexts.lookup(context);
    struct cuda_process *process = process_of(context->tgid);
    if (!references || !process) return;
    if (!wholly && *references > 1) {
        *references -= 1;
        return;
    }
    contexts.delete(context);
    process->contexts -= 1;
    if (!process->contexts && process->seen_from_start) process->generation += 1;
}

static __always_inline void add_context(struct context *context) {
    u64 none = 0, *references = contexts.lookup_or_try_init(context, &none);
    struct cuda_process *process = process_of(context->tgid);
    if (!process) return;
    if (!references) { /* full: the last one that is known is not the last one any more */
        note_lost(LOST_GROUP);
        process->seen_from_start = 0;
        return;
    }
    if (!*references) process->contexts += 1;
    *references += 1;
}

/* An allocating function returned 0. */
static __always_inline void allocated(struct memory_call *call) {
    struct cuda_process *process = process_of(call->tgid);
    if (!process) return;
    struct place place = {.pointer = call->pointer, .tgid = call->tgid, .space = call->space};
    struct allocation a = {.size = call->size, .caller = call->caller, .kind = call->kind};
    if (call->kind != KIND_VMM) a.generation = process->generation;
    int unread = 0;
    if (call->action != REGISTERS) unread = bpf_probe_read_user(&place.pointer, 8, (void *)call->pointer);
    if (call->action == ALLOCATES_PITCH) {
        u64 pitch = 0;
        unread |= bpf_probe_read_user(&pitch, 8, (void *)call->pitch_at);
        a.size = pitch * call->size;
    }
    if (unread) note_lost(LOST_ALLOCATION);
    else count_allocation(&place, &a);
}

static __always_inline void freed(struct memory_call *call) {
    if (call->taken.size) {
        count_free(&call->taken, call->tgid);
    } else if (call->pointer) { /* to free nothing is no error */
        struct cuda_process *process = process_of(call->tgid);
        if (process) __sync_fetch_and_add(&process->unknown_frees, 1);
    }
}

static __always_inline void put_back(struct memory_call *call) {
    struct place place = {.pointer = call->pointer, .tgid = call->tgid, .space = call->space};
    if (call->action == FREES && call->taken.size && live.update(&place, &call->taken)) note_lost(LOST_ALLOCATION);
}

static __always_inline int enter(struct pt_regs *ctx, struct memory_call *call) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_entry(ctx, process, SET_CUDA_MEMORY);
    if (is_off(process, SET_CUDA_MEMORY)) return 0;
    call->frame = frame_of(ctx);
    call->tgid = tgid;
    struct memory_call *outer = memory_calls.lookup(&tid);
    if (outer && is_nested(&outer->frame, &call->frame)) return 0;
    call->caller = call->frame.return_address;
    struct runtime_call *runtime = runtime_calls.lookup(&tid);
    if (runtime && call->action <= REGISTERS && is_inside(runtime, call->frame.sp, call->caller)) {
        call->caller = runtime->caller;
        runtime_calls.delete(&tid);
    }
    if (call->action == FREES) {
        struct place place = {.pointer = call->pointer, .tgid = tgid, .space = call->space};
        struct allocation *a = live.lookup(&place);
        if (a) {
            call->taken = *a;
            live.delete(&place);
        }
    }
    if (memory_calls.update(&tid, call)) {
        note_lost(LOST_CALL);
        put_back(call);
    }
    return 0;
}

/* The return of every function here. */
int cuda_memory_return(struct pt_regs *ctx) {
    u64 pid_tgid = bpf_get_current_pid_tgid();
    u32 tgid = pid_tgid >> 32, tid = pid_tgid;
    struct watched *process = watched.lookup(&tgid);
    if (!process) return 0;
    hit_return(process, SET_CUDA_MEMORY);
    if (is_off(process, SET_CUDA_MEMORY)) return 0;
    struct memory_call *known = memory_calls.lookup(&tid);
    if (!known || known->frame.sp != SP_ON_ENTRY(ctx)) return 0; /* nested, or entered before we came */
    struct memory_call call = *known;
    memory_calls.delete(&tid);
    u32 code = PT_REGS_RC(ctx);
    if (code) {
        note_failure(tgid, call.call, code);
        put_back(&call);
        return 0;
    }
    struct context context = {.id = call.pointer, .tgid = tgid, .is_primary = call.action > DESTROYS_CONTEXT};
    switch (call.action) {
    case FREES: freed(&call); break;
    case CREATES_CONTEXT:
        if (!bpf_probe_read_user(&context.id, 8, (void *)call.pointer)) add_context(&context);
        break;
    case RETAINS_PRIMARY: add_context(&context); break;
    case RELEASES_PRIMARY: drop_context(&context, false); break;
    case DESTROYS_CONTEXT:
    case RESETS_PRIMARY: drop_context(&context, true); break;
    default: allocated(&call);
    }
    return 0;
}
