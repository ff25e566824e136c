"""Files by which the agent says something to processes of other users."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def place(path: Path, content: bytes) -> None:
    """Writes the file whole and puts it in place at once, to be read by everybody, whatever the umask is; removes it where there is
    nothing to say. Raises OSError."""
    if not content:
        path.unlink(missing_ok=True)
        return
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    # A name that others may make in a directory such as /tmp leads nowhere: the file is new, or it is an error.
    file = os.open(scratch, _NEW, 0o644)
    with open(file, "wb") as stream:
        os.fchmod(file, 0o644)
        stream.write(content)
    scratch.replace(path)
