"""The matrix product: where a CPU engine spends its time.

A decode step reads every weight once and does little with it, so it is bound by how many bytes that is. Three layouts, each with
fp32 accumulation; `layout_for` chooses one for each weight, and it is the only one that is kept:

* HALF: fp16 weights, fp32 rows (FBGEMM). For checkpoints that hold 16 bits a weight or less. Half the bytes of fp32, and the
  product converts as it reads.
* BLOCKED: fp32 weights in oneDNN's blocked order. For fp32 checkpoints, and where FBGEMM is missing.
* PLAIN: `F.linear`. On CUDA, and wherever neither is to be had.

`bench/layouts.py` measures all three beside each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

_HALF_MAX: Final = 65504.0  # the largest finite fp16


class Layout(Enum):
    """How the weights of a product lie in memory."""

    HALF = "half"
    BLOCKED = "blocked"
    PLAIN = "plain"


def layout_for(weight: Tensor, stored_bits: int) -> Layout:
    """The layout for `weight` [out, in], of which the checkpoint stored `stored_bits` bits a weight at most.

    fp16 has 11 bits for the mantissa: as many as fp16 weights, more than bf16 ones, and far more than the few bits of a quantised
    block. What is lost are the last bits of weights below 6e-5, at most 3e-8 each. A weight beyond fp16's range keeps its matrix
    in fp32.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return Layout.PLAIN
    if stored_bits <= 16 and _has_fbgemm() and bool(weight.abs().max() <= _HALF_MAX):
        return Layout.HALF
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return Layout.BLOCKED if has_onednn else Layout.PLAIN


def _has_fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


class Linear:
    """`y = x @ weight.T + bias` for weight [out, in]. Keeps only the layout it multiplies with."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, layout: Layout | None = None) -> None:
        """`layout` None is what `layout_for` says of an fp32 checkpoint."""
        self.layout = layout or layout_for(weight, stored_bits=32)
        self.width_in = weight.shape[1]
        self._packed, self._product = _KERNELS[self.layout](weight, bias)
        self._weight_bytes = weight.nbytes // 2 if self.layout is Layout.HALF else weight.nbytes
        self._bias_bytes = 0 if bias is None else bias.nbytes

    @property
    def n_bytes(self) -> int:
        """Bytes of weight and bias. The libraries may pad their blocks by a little, which torch does not tell."""
        return self._weight_bytes + self._bias_bytes

    def shares(self, weight: Tensor) -> bool:
        """True when this product reads `weight` itself, False when it has a copy in another layout."""
        return self._packed is weight

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], both in the dtype of the weight that was given."""
        return self._product(rows)


_Kernel = tuple[Any, Callable[[Tensor], Tensor]]


def _half(weight: Tensor, bias: Tensor | None) -> _Kernel:
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    product = torch.ops.quantized.linear_dynamic_fp16.default
    return packed, lambda rows: product(rows, packed)


def _blocked(weight: Tensor, bias: Tensor | None) -> _Kernel:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    product = torch.ops.mkldnn._linear_pointwise.default
    return packed, lambda rows: product(rows, packed, bias, "none", [], "")


def _plain(weight: Tensor, bias: Tensor | None) -> _Kernel:
    return weight, lambda rows: F.linear(rows, weight, bias)


_KERNELS: Final = {Layout.HALF: _half, Layout.BLOCKED: _blocked, Layout.PLAIN: _plain}


# oneDNN keeps code and scratch memory for every number of rows it has seen: after 256 different ones 560 MB for SmolLM2, which
# from outside looks like a leak. With these row counts it is 55 MB. Small ones are exact, because there a row costs most.
_ROW_COUNTS: Final[tuple[int, ...]] = (
    *range(1, 9),
    10,
    12,
    14,
    16,
    20,
    24,
    28,
    32,
    40,
    48,
    56,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
)


def padded_rows(rows: int) -> int:
    """The number of rows to multiply instead of `rows` in a BLOCKED product: the next of a fixed few, a quarter more at most."""
    if rows > _ROW_COUNTS[-1]:
        return -(-rows // 64) * 64
    return _ROW_COUNTS[bisect_left(_ROW_COUNTS, rows)]
