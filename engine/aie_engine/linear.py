"""The matrix product: where a CPU engine spends its time.

On the CPU in fp32 the weights are reordered once into oneDNN's blocked layout. Measured for SmolLM2 on one core of a
2-core AVX-512 host (30 layers, fused projections): 8 rows 41 ms instead of 68 ms, head 10 ms instead of 25 ms; 1 row 30
ms instead of 28 ms. Everything else (CUDA, other dtypes, a torch without oneDNN) is `F.linear`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


class Linear:
    """`y = x @ weight.T + bias` for weight [out, in]. Keeps only the layout it multiplies with."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = can_prepack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias
        self._weight_bytes = weight.nbytes

    @property
    def n_bytes(self) -> int:
        """Bytes of weight and bias. oneDNN may pad its blocks by a little, which torch does not tell."""
        return self._weight_bytes + (0 if self._bias is None else self._bias.nbytes)

    def shares(self, weight: Tensor) -> bool:
        """True when this product reads `weight` itself, False when it has a copy in another layout."""
        return self._weight is weight

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], both in the weight's dtype."""
        if self._packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return product
        return F.linear(rows, self._weight, self._bias)


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
    """The number of rows to multiply instead of `rows`: the next one of a fixed few, a quarter more at most."""
    if rows > _ROW_COUNTS[-1]:
        return -(-rows // 64) * 64
    return _ROW_COUNTS[bisect_left(_ROW_COUNTS, rows)]


def can_prepack(weight: Tensor) -> bool:
    """True where oneDNN's blocked layout pays: fp32 on the CPU. (bf16 is slow without AVX-512 BF16 or AMX.)"""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and weight.device.type == "cpu" and weight.dtype == torch.float32
