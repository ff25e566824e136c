"""What a checkpoint's files hold, against what the decoder is going to read.

Names and shapes are compared before the first weight is read: a model that cannot work says so at once, and nothing is allocated
from sizes that only the configuration claims. A tensor that nobody would read is refused too: ignoring it gives wrong answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from aie_engine.errors import ModelError
from aie_engine.model_config import ModelConfig, tensor_shapes

_log = logging.getLogger(__name__)


def check_tensors(
    config: ModelConfig,
    found: Mapping[str, tuple[int, ...]],
    path: Path,
    *,
    stored_name: Callable[[str], str] = str,
    unread: Callable[[str], bool],
) -> None:
    """Raises ModelError for the first tensor that is missing, misshapen or unknown.

    `found` are the shapes in the files of `path`, by the names they have there; `stored_name` translates from Hugging Face's.
    `unread` says which others may be there although the decoder does not read them.
    """
    expected = set()
    for name, shape in tensor_shapes(config):
        stored = stored_name(name)
        expect_shape(stored, found.get(stored), shape, path)
        expected.add(stored)
    for name in found:
        if name not in expected and not unread(name):
            raise ModelError(path, f"unknown tensor {name!r:.80}", "dense Llama and Qwen2 models")


def expect_shape(name: str, found: tuple[int, ...] | None, shape: tuple[int, ...], path: Path) -> None:
    """Raises ModelError unless a tensor was found, and with that shape."""
    if found is None:
        raise ModelError(path, f"tensor {name!r:.120} is missing")
    if found != shape:
        raise ModelError(path, f"tensor {name!r:.120} has shape {found}", f"{shape}")


def warn_if_not_finite(name: str, tensor: torch.Tensor, path: Path) -> None:
    """Logs a warning for a tensor with NaN or infinity: it is served as it is, and poisons the answers. Costs one pass over it."""
    low, high = torch.aminmax(tensor)  # a NaN anywhere makes both NaN; twenty times as fast as isfinite().all()
    if not bool(torch.isfinite(high - low)):
        _log.warning("%s: tensor %r holds NaN or infinity", path, name)
