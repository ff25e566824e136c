"""What the agent remembers across its own restarts: one file, written whole and put in place at once, that only its user reads."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

log = logging.getLogger(__name__)

VERSION: Final = 1
SAVE_EVERY_S: Final = 60.0
_LARGEST: Final = 16 << 20


class StateFile:
    """A file of state. Reading and writing never raise: a state that cannot be had is begun anew, and the log says why, once."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is kept."""
        self._path = path
        self._complained = False

    def read(self) -> Mapping[str, Any]:
        """What was written last, or nothing."""
        if self._path is None or not self._path.exists():
            return {}
        try:
            if self._path.stat().st_size > _LARGEST:
                raise ValueError(f"larger than {_LARGEST} bytes")
            state = msgspec.json.decode(self._path.read_bytes())
            if not isinstance(state, dict) or state.get("version") != VERSION:
                raise ValueError(f"not a state of version {VERSION}")
            parts = state.get("parts")
            if not isinstance(parts, dict):
                raise ValueError("no parts")
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            log.warning("state in %s is not used: %s", self._path, error)
            return {}
        return parts

    def write(self, parts: Mapping[str, Any]) -> None:
        """Replaces the file. A crash leaves the old one or the new one, never a half; a full disk leaves the old one."""
        if self._path is None:
            return
        scratch = self._path.with_name(f"{self._path.name}.new")
        try:
            scratch.unlink(missing_ok=True)
            with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode({"version": VERSION, "parts": parts}))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning(
                    "state cannot be saved to %s: %s: what is watched for days begins anew at a restart", self._path, error.strerror
                )
            self._complained = True


def default_path() -> Path | None:
    """Where systemd has made a directory for us (StateDirectory=), else nowhere."""
    directory = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(directory) / "state.json" if directory else None
