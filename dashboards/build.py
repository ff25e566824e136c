"""Writes the boards: `python dashboards/build.py` after a change of a table, `--check` to ask whether that was forgotten."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script, its own directory stands there instead
    sys.path.insert(0, str(ROOT))

from dashboards.assemble import board_json  # noqa: E402
from dashboards.boards import BOARDS  # noqa: E402
from dashboards.document import markdown  # noqa: E402

JSON_DIRECTORY: Final = ROOT / "dashboards" / "aie_dashboards" / "json"


def generated() -> dict[Path, str]:
    """Every file that the tables make, with its text."""
    files = {JSON_DIRECTORY / f"{board.uid}.json": board_json(board) for board in BOARDS}
    return {**files, ROOT / "docs" / "dashboards.md": markdown(BOARDS)}


def stale(files: dict[Path, str]) -> list[Path]:
    """Those that are not what they should be, and boards that no table makes any more."""
    different = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return different + [path for path in sorted(JSON_DIRECTORY.glob("*.json")) if path not in files]


def main() -> int:
    """Exit status 1 when asked to check, and something is stale."""
    parser = argparse.ArgumentParser(prog="python dashboards/build.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when a file is not what it should be")
    arguments = parser.parse_args()
    files = generated()
    changed = stale(files)
    for path in changed:
        print(path.relative_to(ROOT))
        if not arguments.check and path in files:
            path.write_text(files[path])
        elif not arguments.check:
            path.unlink()
    return 1 if changed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
