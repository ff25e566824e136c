"""OTLP over gRPC: the SDK's exporter, with its answers read. It throws them away, and counts as sent what was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from grpc import Compression  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

from aie_agent.outputs.otlp.answers import note_partial

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    from aie_agent.outputs.otlp.refused import Refused


_COMPRESSIONS: Final = {"none": Compression.NoCompression, "gzip": Compression.Gzip, "deflate": Compression.Deflate}
"""The SDK's own reading of the variable knows "gzip" only, and raises for "none"."""


class _Client:
    """The service as the exporter calls it."""

    def __init__(self, export: Callable[..., ExportMetricsServiceResponse], refused: Refused) -> None:
        self._export = export
        self._refused = refused

    def Export(self, **call: Any) -> ExportMetricsServiceResponse:  # noqa: N802 - gRPC's name
        """One request. Raises what gRPC raises, for an answer that is no OTLP as well."""
        answer = self._export(**call)
        note_partial(answer, self._refused)
        return answer


class GrpcExporter(OTLPMetricExporter):
    """Pushes by gRPC, and notes what the collector says that it refused."""

    _client: Any

    def __init__(self, endpoint: str, timeout_s: float, compression: str, refused: Refused) -> None:
        """Raises what certificates raise that cannot be read. `compression` is "none", "gzip" or "deflate"."""
        self._refused = refused
        super().__init__(endpoint=endpoint, timeout=timeout_s, compression=_COMPRESSIONS[compression])

    def _initialize_channel_and_stub(self) -> None:
        """The SDK calls it again after UNAVAILABLE: each of its clients is wrapped."""
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        self._client = _Client(self._client.Export, self._refused)
