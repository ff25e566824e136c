"""Writes what is generated of the alerts: the rules of objectives, and the list of all alerts.

    python alerts/build.py [--check]

With --check nothing is written, and the exit status is 1 when a file is not what would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ALERTS: Final = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(ALERTS.parent))  # a script has its own folder there (for aie_alerts), and not the one above

import aie_alerts  # noqa: E402
from alerts import document, slo  # noqa: E402


def generated() -> Mapping[Path, str]:
    """Each file that is generated, and its text."""
    rules = slo.rules(slo.parse((ALERTS / "objectives.toml").read_text()))
    folder = ALERTS / "aie_alerts" / "rules"
    texts = {path.stem: path.read_text() for path in sorted(folder.glob("*.yaml"))} | {"slo": rules}
    questions = {name: document.question(aie_alerts.page_text(path)) for name, path in aie_alerts.pages().items()}
    return {folder / "slo.yaml": rules, ALERTS.parent / "docs" / "alerts.md": document.render(texts, questions)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    check = parser.parse_args().check
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ALERTS.parent)}")
        if not check:
            path.write_text(generated()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
