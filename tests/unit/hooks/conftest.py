from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hook_receivers import Clock, UdpReceiver, UnixReceiver, manual_emitter

from aie_hooks import Emitter


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "statsd.sock"


@pytest.fixture
def receiver(socket_path: Path) -> Iterator[UnixReceiver]:
    receiver = UnixReceiver(socket_path)
    yield receiver
    receiver.close()


@pytest.fixture
def udp_receiver() -> Iterator[UdpReceiver]:
    receiver = UdpReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def emitter(receiver: UnixReceiver, socket_path: Path) -> Emitter:
    return manual_emitter(f"unix://{socket_path}")
