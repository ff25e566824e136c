"""Which functions of CUDA's driver API are probed, as data: one row a function, its variants by suffix beside it."""

from __future__ import annotations

from typing import Final, NamedTuple

CUDA_TEXT: Final = ("cuda.h", "cuda_memory.h", "cuda_memory", "cuda_memory_calls", "cuda_sync", "cuda_copy", "cuda_copy_shapes")
"""The files of `programs/` that make the module of cuda_memory, cuda_sync and cuda_copy: they share maps."""

LAUNCH_TEXT: Final = ("cuda.h", "cuda_launch")
"""The files of the module of cuda_launch."""


class Uprobe(NamedTuple):
    """A program at a function's entry, and one at its return where the result matters (each costs a trap).

    `soname` is the beginning of the file's name. `symbols` are the exported names of the same call: the base and its per-thread
    default stream variants (`_ptsz`, `_ptds`); names that share an address are probed once. `since` is the CUDA version that
    brought it; a library without it is older, which is no fault.
    """

    set: str
    soname: str
    symbols: tuple[str, ...]
    entry: str
    on_return: str | None
    signature: str
    since: str
    optional: bool = False


_DRIVER: Final = "libcuda.so"
_RUNTIME: Final = "libcudart"


def _memory(symbols: str, arguments: str, since: str) -> Uprobe:
    """Its entry is named after the function without its version."""
    row = _row("cuda_memory", symbols, arguments, since)
    return row._replace(on_return="cuda_memory_return")


def _sync(symbols: str, arguments: str, since: str) -> Uprobe:
    return _row("cuda_sync", symbols, arguments, since)._replace(on_return="cuda_sync_return")


def _copy(symbols: str, arguments: str, since: str, entry: str = "") -> Uprobe:
    return _row("cuda_copy", symbols, arguments, since, entry)


def _launch(symbols: str, arguments: str, since: str) -> Uprobe:
    return _row("cuda_launch", symbols, arguments, since)


def _row(set_: str, symbols: str, arguments: str, since: str, entry: str = "") -> Uprobe:
    names = tuple(symbols.split())
    base = names[0].split("_")[0]
    return Uprobe(set_, _DRIVER, names, f"{entry or base}_entry", None, f"CUresult {names[0]}({arguments})", since)


_TO_DEVICE: Final = "CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount"
_TO_HOST: Final = "void *dstHost, CUdeviceptr srcDevice, size_t ByteCount"
_ON_DEVICE: Final = "CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount"
_ANYWHERE: Final = "CUdeviceptr dst, CUdeviceptr src, size_t ByteCount"
_PEERS: Final = "CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount"
_BATCH: Final = "CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, ..."

# Every function of CUDA's runtime that gets memory from the driver. One row, since only who called it is of interest.
_RUNTIME_ALLOCATORS: Final = (
    "cudaMalloc", "cudaMallocPitch", "cudaMalloc3D", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc", "cudaHostRegister",
    "cudaMallocAsync", "cudaMallocAsync_ptsz", "cudaMallocFromPoolAsync", "cudaMallocFromPoolAsync_ptsz",
)  # fmt: skip

# Versions are those of CUDA's own cudaTypedefs.h.
CUDA_UPROBES: Final[tuple[Uprobe, ...]] = (
    _memory("cuMemAlloc_v2", "CUdeviceptr *dptr, size_t bytesize", "3.2"),
    _memory("cuMemAllocPitch_v2",
            "CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned ElementSizeBytes", "3.2"),
    _memory("cuMemAllocManaged", "CUdeviceptr *dptr, size_t bytesize, unsigned flags", "6.0"),
    _memory("cuMemAllocAsync cuMemAllocAsync_ptsz", "CUdeviceptr *dptr, size_t bytesize, CUstream hStream", "11.2"),
    _memory("cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz",
            "CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream", "11.2"),
    _memory("cuMemCreate",
            "CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags", "10.2"),
    _memory("cuMemRelease", "CUmemGenericAllocationHandle handle", "10.2"),
    _memory("cuMemFree_v2", "CUdeviceptr dptr", "3.2"),
    _memory("cuMemFreeAsync cuMemFreeAsync_ptsz", "CUdeviceptr dptr, CUstream hStream", "11.2"),
    _memory("cuMemAllocHost_v2", "void **pp, size_t bytesize", "3.2"),
    _memory("cuMemHostAlloc", "void **pp, size_t bytesize, unsigned Flags", "2.2"),
    _memory("cuMemFreeHost", "void *p", "2.0"),
    _memory("cuMemHostRegister_v2 cuMemHostRegister", "void *p, size_t bytesize, unsigned Flags", "4.0"),
    _memory("cuMemHostUnregister", "void *p", "4.0"),
    _memory("cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4", "CUcontext *pctx, unsigned flags, CUdevice dev", "3.2"),
    _memory("cuCtxDestroy_v2 cuCtxDestroy", "CUcontext ctx", "2.0"),
    _memory("cuDevicePrimaryCtxRetain", "CUcontext *pctx, CUdevice dev", "7.0"),
    _memory("cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease", "CUdevice dev", "7.0"),
    _memory("cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset", "CUdevice dev", "7.0"),
    Uprobe("cuda_memory", _RUNTIME, _RUNTIME_ALLOCATORS, "cuda_runtime_entry", None,
           "cudaError_t cudaMalloc(void **devPtr, size_t size)", "2.0", optional=True),

    _sync("cuStreamSynchronize cuStreamSynchronize_ptsz", "CUstream hStream", "2.0"),
    _sync("cuEventSynchronize", "CUevent hEvent", "2.0"),
    _sync("cuCtxSynchronize cuCtxSynchronize_v2", "void", "2.0"),

    _copy("cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds", _TO_DEVICE, "3.2"),
    _copy("cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz", f"{_TO_DEVICE}, CUstream hStream", "3.2", "cuMemcpyHtoD"),
    _copy("cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds", _TO_HOST, "3.2"),
    _copy("cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz", f"{_TO_HOST}, CUstream hStream", "3.2", "cuMemcpyDtoH"),
    _copy("cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds", _ON_DEVICE, "3.2"),
    _copy("cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz", f"{_ON_DEVICE}, CUstream hStream", "3.2", "cuMemcpyDtoD"),
    _copy("cuMemcpy cuMemcpy_ptds", _ANYWHERE, "4.0"),
    _copy("cuMemcpyAsync cuMemcpyAsync_ptsz", f"{_ANYWHERE}, CUstream hStream", "4.0", "cuMemcpy"),
    _copy("cuMemcpyPeer cuMemcpyPeer_ptds", _PEERS, "4.0"),
    _copy("cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz", f"{_PEERS}, CUstream hStream", "4.0", "cuMemcpyPeer"),
    _copy("cuMemcpy2D_v2 cuMemcpy2D_v2_ptds", "const CUDA_MEMCPY2D *pCopy", "3.2"),
    _copy("cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds", "const CUDA_MEMCPY2D *pCopy", "3.2", "cuMemcpy2D"),
    _copy("cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz", "const CUDA_MEMCPY2D *pCopy, CUstream hStream", "3.2", "cuMemcpy2D"),
    _copy("cuMemcpy3D_v2 cuMemcpy3D_v2_ptds", "const CUDA_MEMCPY3D *pCopy", "3.2"),
    _copy("cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz", "const CUDA_MEMCPY3D *pCopy, CUstream hStream", "3.2", "cuMemcpy3D"),
    _copy("cuMemcpy3DPeer cuMemcpy3DPeer_ptds", "const CUDA_MEMCPY3D_PEER *pCopy", "4.0"),
    _copy("cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz", "const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream", "4.0",
          "cuMemcpy3DPeer"),
    _copy("cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz", _BATCH, "12.8",
          "cuMemcpyBatch"),

    _launch("cuLaunchKernel cuLaunchKernel_ptsz", "CUfunction f, unsigned gridDimX, ...", "4.0"),
    _launch("cuLaunchKernelEx cuLaunchKernelEx_ptsz", "const CUlaunchConfig *config, CUfunction f, ...", "11.6"),
    _launch("cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz", "CUfunction f, unsigned gridDimX, ...", "9.0"),
    _launch("cuGraphLaunch cuGraphLaunch_ptsz", "CUgraphExec hGraphExec, CUstream hStream", "10.0"),
)  # fmt: skip
