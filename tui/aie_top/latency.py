"""Quantiles of latencies as text: one in the highest bucket is only known to be longer than that bucket's lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aie_telemetry.catalogue import CATALOGUE
from aie_top import format as fmt

# By the fields of api.Engine; and of api.CudaUse.
_METRICS: Final = {
    "time_to_first_token": "aie_engine_time_to_first_token_seconds",
    "inter_token": "aie_engine_inter_token_seconds",
    "queue": "aie_engine_queue_seconds",
    "prefill": "aie_engine_prefill_seconds",
    "decode": "aie_engine_decode_seconds",
    "tokenize": "aie_engine_tokenize_seconds",
    "duration": "aie_engine_request_duration_seconds",
    "syncs": "aie_cuda_sync_seconds",
}


def writer(field: str) -> Callable[[float | None], str]:
    """Writes quantiles of that field in seconds: 31.2 ms, but >8 s for what is the highest bound itself.

    The agent gives that bound for every quantile above it, as Prometheus does. An engine with bounds of its own is not told apart
    that way: of its highest one nothing is known here.
    """
    highest = CATALOGUE[_METRICS[field]].buckets[-1]

    def write(seconds: float | None) -> str:
        return f">{highest:.3g} s" if seconds == highest else fmt.duration(seconds)

    return write
