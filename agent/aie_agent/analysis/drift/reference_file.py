"""The file of a reference: a line that says what it is, the header as a line of JSON, and the values of each column, little-endian
doubles. It is written once, and one that is not as it was written is refused by its hash. One of before it was asked how much its
values tell is read as it would be built now, which is another reference, with a hash of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from aie_agent.analysis.drift.independence import as_built_now
from aie_agent.analysis.drift.reference import Header, Reference, UnfitReferenceError

_MAGIC: Final = b"aie drift reference 1\n"
_LARGEST_FILE_BYTES: Final = 64 << 20


def save(reference: Reference, path: Path) -> None:
    """Writes a new file, read-only: all of it, or none where that fails. Who is killed meanwhile leaves a beginning of it, which
    `load` refuses. Raises FileExistsError where there is one, and OSError."""
    content = _MAGIC + msgspec.json.encode(reference.header) + b"\n" + _data(reference.header, reference.values)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def replace(reference: Reference, path: Path) -> None:
    """Puts it in the place of what is there, at one moment. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    save(reference, beside)
    try:
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def is_reference(path: Path) -> bool:
    """Whether a file begins as references do. Raises UnfitReferenceError for a pipe, of which the beginning would be gone, and
    OSError."""
    if path.is_fifo():
        raise UnfitReferenceError("a pipe, which cannot be read twice: give a file")
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def load(path: Path) -> Reference:
    """Reads a file. Raises OSError, and UnfitReferenceError for one that is no reference, or not as it was written."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE_BYTES + 1)
    if len(content) > _LARGEST_FILE_BYTES:
        raise UnfitReferenceError("too large for a reference")
    head, newline, data = content.removeprefix(_MAGIC).partition(b"\n")
    if not content.startswith(_MAGIC) or not newline:
        raise UnfitReferenceError("no drift reference (make one with `aie-agent baseline build`)")
    try:
        header = msgspec.json.decode(head, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnfitReferenceError(f"its header cannot be read: {error}") from error
    if len(data) != 8 * sum(column.m for column in header.columns):
        raise UnfitReferenceError("cut off, or something was added to it")
    values: dict[str, Sequence[float]] = {}
    for column in header.columns:
        values[column.name] = _floats(data[: 8 * column.m])
        data = data[8 * column.m :]
    if hash_of(header, values) != header.sha256:
        raise UnfitReferenceError("changed since it was written: its hash is another")
    now = as_built_now(header)
    return Reference(now if now is header else msgspec.structs.replace(now, sha256=hash_of(now, values)), values)


def hash_of(header: Header, values: Mapping[str, Sequence[float]]) -> str:
    """Of all that is in a reference but the hash itself, as its file has it; in hexadecimal digits."""
    blank = msgspec.structs.replace(header, sha256="")
    return hashlib.sha256(msgspec.json.encode(blank) + b"\n" + _data(header, values)).hexdigest()


def _floats(data: bytes) -> array[float]:
    """Little-endian on every machine."""
    values = array("d", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _data(header: Header, values: Mapping[str, Sequence[float]]) -> bytes:
    return b"".join(_floats(array("d", values[column.name]).tobytes()).tobytes() for column in header.columns)
