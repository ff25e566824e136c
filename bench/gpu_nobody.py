"""What NVML answers a process without privilege: most agents in containers are one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final, NoReturn

from gpu_driver import Driver
from gpu_nvml import AtHand, Nvml
from gpu_report import Context

_NOBODY: Final = 65534


def as_nobody(context: Context, ask: Callable[[AtHand], Any]) -> Any:
    """What `ask` returns there, or why there is no answer. To be called before this process uses CUDA, which no fork survives."""
    if os.getuid() != 0:
        return "this process itself has no privilege"
    if not context.is_cuda:
        return "not tried: the simulated library asks for none"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(context, ask, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else "its process died"


def _answer(context: Context, ask: Callable[[AtHand], Any], writing: int) -> NoReturn:
    """In the forked process: CUDA tells which device it is before privilege is given up, NVML is opened after."""
    try:
        uuids = Driver(context.device_index).uuids
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        nvml = Nvml()
        said = json.dumps(ask(AtHand(nvml, nvml.by_uuid(uuids), None)))
    except Exception as error:  # noqa: BLE001 - it is the answer
        said = json.dumps(f"{type(error).__name__}: {error}")
    os.write(writing, said.encode())
    os._exit(0)
