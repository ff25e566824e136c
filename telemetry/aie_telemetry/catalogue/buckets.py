"""Upper bounds of the histograms, in the unit of their metrics."""

from __future__ import annotations

from typing import Final

# Bounds follow the field's (OpenTelemetry GenAI, vLLM, SGLang, TensorRT-LLM) and add the low end, where those cannot tell a
# fast small model from a slow one: vLLM's lowest inter-token bound is 10 ms, its lowest queue bound 300 ms.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS: Final = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
QUEUE_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
)  # fmt: skip
STEP_BUCKETS: Final = (
    0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.096, 0.128, 0.192, 0.256, 0.384, 0.512, 1.0,
    2.0, 4.0,
)  # fmt: skip

STAGE_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0,
)  # fmt: skip
PAUSE_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LENGTH_BUCKETS: Final = tuple(float(n) for n in (
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072,
))  # fmt: skip
BATCH_BUCKETS: Final = tuple(float(n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512))
NATS_BUCKETS: Final = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0,
)  # fmt: skip
LOGSUMEXP_BUCKETS: Final = (
    -200.0, -100.0, -50.0, -20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0, 35.0,
    40.0, 50.0, 100.0, 200.0,
)  # fmt: skip

# Of what the kernel's programs count: powers of two, which a program finds with one instruction. As in aie_ebpf.messages.
PROBE_TIME_BUCKETS: Final = tuple(2.0**exponent * 1e-6 for exponent in range(27))
PROBE_SIZE_BUCKETS: Final = tuple(2.0**exponent for exponent in range(8, 35))
