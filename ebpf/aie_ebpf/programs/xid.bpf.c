/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors that the NVIDIA driver reports of a GPU: nvidia:nvidia_dev_xid, in the open kernel modules since 575.51.02. Field offsets
 * come from tracefs (tracepoints.py); dev and msg are __data_loc strings.
 */
struct xid {
    u32 code;
    char device[20];
    char text[104];
};
BPF_RINGBUF_OUTPUT(xids, 8);

int nvidia_dev_xid(char *args) {
    struct xid *xid = xids.ringbuf_reserve(sizeof(*xid));
    if (!xid) {
        note_lost(LOST_EVENT);
        return 0;
    }
    xid->code = *(u32 *)(args + XID_ERROR_CODE);
    bpf_probe_read_kernel_str(xid->device, sizeof(xid->device), args + (*(u32 *)(args + XID_DEV) & 0xffff));
    bpf_probe_read_kernel_str(xid->text, sizeof(xid->text), args + (*(u32 *)(args + XID_MSG) & 0xffff));
    xids.ringbuf_submit(xid, 0);
    return 0;
}
