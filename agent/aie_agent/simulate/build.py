"""Compiles the stand-in once and keeps it: a C compiler is asked for at the first use only.

What was compiled is kept under the user's cache directory, by a hash of everything it depends on, so two versions never meet. Two
processes may build at the same moment: each writes a file of its own and moves it into place whole.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from aie_agent.simulate.layout import CSRC, FUNCTIONS

SONAME: Final = "libnvidia-ml.so.1"
CURRENT_DRIVER: Final = 580
"""The driver branch whose symbols are exported unless another is asked for."""
WARNINGS: Final = ("-Wall", "-Wextra")
_FLAGS: Final = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{SONAME}")
_OWN_SYMBOLS: Final = ("aie_stand_in_attach",)
_TIMEOUT_S: Final = 120


class BuildError(RuntimeError):
    """The stand-in could not be compiled. The message is one line that says what to do."""


def compiler() -> str:
    """The C compiler: ``$CC``, else ``cc``, ``gcc`` or ``clang`` of the path.

    Raises:
        BuildError: there is none.
    """
    wanted = os.environ.get("CC", "").split()
    for name in (*wanted[:1], "cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("simulated GPUs need a C compiler, and none was found: install gcc or clang, or set CC")


def cache_directory() -> Path:
    """Where compiled stand-ins are kept: ``$XDG_CACHE_HOME/aie``, else ``~/.cache/aie``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "aie" / "simulated-gpus"


def exports(driver: int) -> str:
    """The linker's list of what a driver of this branch would export; everything else is hidden, and ``dlsym`` fails on it."""
    names = [*_OWN_SYMBOLS, *(function.name for function in FUNCTIONS if function.since <= driver)]
    return "{\n  global:\n" + "".join(f"    {name};\n" for name in names) + "  local: *;\n};\n"


def compile_library(target: Path, driver: int = CURRENT_DRIVER, extra: tuple[str, ...] = ()) -> None:
    """Compiles the stand-in into ``target``, with further flags of the compiler.

    Raises:
        BuildError: no compiler, or it refused.
    """
    with tempfile.TemporaryDirectory(prefix="aie-stand-in-") as scratch:
        script = Path(scratch) / "exports.map"
        script.write_text(exports(driver))
        command = [compiler(), *_FLAGS, *extra, f"-Wl,--version-script={script}"]
        command += [*(str(path) for path in sorted(CSRC.glob("*.c"))), "-lm", "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"simulated GPUs: the C compiler did not run: {error}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"simulated GPUs: the C compiler refused the stand-in: {first}")


def stand_in(driver: int = CURRENT_DRIVER) -> Path:
    """The compiled stand-in as a driver of this branch exports it; compiled now if it was not before.

    Returns:
        The absolute path of a file named ``libnvidia-ml.so.1``, in a directory that holds nothing else.

    Raises:
        BuildError: no compiler, it refused, or the cache directory cannot be written.
    """
    target = cache_directory() / f"{driver}-{_fingerprint()}" / SONAME
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=target.parent.parent, prefix=".building-")
        os.close(descriptor)
    except OSError as error:
        raise BuildError(f"simulated GPUs: {target.parent} cannot be written: {error.strerror}; set XDG_CACHE_HOME") from error
    try:
        compile_library(Path(scratch), driver)
        os.chmod(scratch, 0o755)
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return target


def _fingerprint() -> str:
    digest = hashlib.sha256("\0".join((os.uname().machine, *_FLAGS)).encode())
    for path in sorted(CSRC.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
