"""What drift may write and send, all off by default: single numbers of requests, for a new reference; and, to a file and to a
webhook, which engines' answers are not to be trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aie_agent.config import DriftSection
from aie_agent.outputs.degrade import DegradeFile
from aie_agent.outputs.value_recorder import ValueRecorder
from aie_agent.outputs.webhook import Webhook
from aie_agent.request_values import RequestValues
from aie_telemetry.api import Finding

_WRITE_EVERY_S: Final = 10.0


class DriftFiles:
    """Follows the values and the findings, tick by tick."""

    def __init__(self, section: DriftSection) -> None:
        self._degrade = DegradeFile(section.alarm_file)
        self.webhook = Webhook(section.webhook.url)
        self._recorder = ValueRecorder(section.record_directory)
        self._position = 0
        self._written_s = self._now_s = 0.0

    async def update(self, values: RequestValues, findings: Sequence[Finding], now_s: float) -> None:
        """Writes what is due, in a worker thread. Never raises."""
        self._position, arrived = values.since(self._position)
        self._recorder.take(arrived)
        self.webhook.update(findings, now_s)
        if self._degrade.is_on:
            await asyncio.to_thread(self._degrade.update, findings, now_s)
        self._now_s = now_s
        if self._recorder.is_on and not 0.0 <= now_s - self._written_s < _WRITE_EVERY_S:
            self._written_s = now_s
            await asyncio.to_thread(self._recorder.write, now_s)

    def close(self) -> None:
        """Writes what is left, and sends nothing more."""
        self.webhook.close()
        self._recorder.write(self._now_s)
