"""What a collector's answers say beside "success": points that it refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

if TYPE_CHECKING:
    import requests

    from aie_agent.outputs.otlp.refused import Refused

_PROTOBUF: Final = "application/x-protobuf"
_MOST_CHARS: Final = 200


def inspector(refused: Refused) -> Callable[[requests.Response], None]:
    """Notes what answers say of refused points. Raises what `requests` raises for an answer that is not what it says to be."""

    def inspect(response: requests.Response) -> None:
        if response.headers.get("Content-Type", "").split(";")[0].strip().lower() != _PROTOBUF:
            return
        try:
            answer = ExportMetricsServiceResponse.FromString(response.content)
        except DecodeError as error:
            from requests.exceptions import InvalidSchema

            raise InvalidSchema("it answers what is no OTLP") from error
        note_partial(answer, refused)

    return inspect


def note_partial(answer: ExportMetricsServiceResponse, refused: Refused) -> None:
    """Notes what an answer says of refused points, if it does."""
    partial = answer.partial_success
    if partial.rejected_data_points > 0:
        text = "".join(char if char.isprintable() else " " for char in partial.error_message[:_MOST_CHARS])
        refused.note(partial.rejected_data_points, text or "it does not say why")
