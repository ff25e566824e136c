"""Products in every layout, and which layout a weight gets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from aie_engine.linear import Layout, Linear, layout_for, padded_rows


def weight(width_out: int = 37, width_in: int = 24) -> torch.Tensor:
    return torch.randn(width_out, width_in, generator=torch.Generator().manual_seed(2)) * 0.05


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
def test_a_product_is_that_of_the_weights_it_keeps(layout: Layout, biased: bool, rows: int) -> None:
    kept = weight().half().float() if layout is Layout.HALF else weight()
    bias = torch.linspace(-1, 1, 37) if biased else None
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        product = Linear(weight(), bias, layout=layout)(x)
    torch.testing.assert_close(product, F.linear(x, kept, bias), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 9, 16])
def test_sixteen_bits_or_less_stay_sixteen(bits: int) -> None:
    linear = Linear(weight(), torch.zeros(37), layout=layout_for(weight(), bits))
    assert linear.layout is Layout.HALF
    assert linear.n_bytes == 37 * 24 * 2 + 37 * 4


def test_what_fp16_cannot_hold_stays_fp32() -> None:
    assert layout_for(weight(), 32) is Layout.BLOCKED
    assert layout_for(weight() * 1e7, 16) is Layout.BLOCKED
    assert layout_for(weight().bfloat16(), 16) is Layout.PLAIN
    broken = weight()
    broken[3, 3] = float("nan")
    assert layout_for(broken, 16) is Layout.BLOCKED


def test_rows_are_filled_up_by_a_quarter_at_most() -> None:
    counts = [padded_rows(rows) for rows in range(1, 2000)]
    assert all(rows <= count <= rows * 1.25 + 1 for rows, count in enumerate(counts, 1))
    assert len(set(counts[:256])) <= 28
