"""Exceptions of the model side. Each carries one line that an operator can act on."""

from __future__ import annotations

import stat
from pathlib import Path


class ModelError(Exception):
    """A model cannot be loaded: which file, what is wrong with it, and what would have been accepted."""

    def __init__(self, file: str | Path, wrong: str, accepted: str = "") -> None:
        self.file = str(file)
        self.wrong = wrong
        self.accepted = accepted
        text = f"{self.file}: {wrong}" + (f" (accepted: {accepted})" if accepted else "")
        # Names inside a hostile file may hold line breaks; a log line must stay one line.
        super().__init__(" ".join(text.split()))


class ChatTemplateError(Exception):
    """The model's chat template refused these messages; the text is fit to be shown to the client."""


def require_regular(path: Path, accepted: str = "") -> None:
    """Raises ModelError where `path` is a FIFO, a device or the like: to open or read one may take for ever.

    What is not there or cannot be looked at passes; opening it says why.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise ModelError(path, "is not a regular file", accepted)
