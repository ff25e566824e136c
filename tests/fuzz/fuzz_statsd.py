"""Coverage-guided fuzzing of the StatsD codec. Usage: python tests/fuzz/fuzz_statsd.py [LIBFUZZER OPTIONS] [CORPUS FOLDER]

Needs the `atheris` package. An empty or new corpus folder, by default a temporary one, is seeded with the conformance vectors.
Whatever the bytes: nothing raises, refusals have known reasons, samples are sound, and what can be written reads back the same.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aie_telemetry.statsd", "aie_telemetry.statsd_encode"]):
    from aie_telemetry.statsd import MAX_TAGS, MIN_RATE, REASONS, TYPES, Dialect, Parsed, Parser, Sample
    from aie_telemetry.statsd_encode import encode

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "telemetry"))
from test_statsd_vectors import VECTORS

DIALECTS: tuple[Dialect, ...] = ("telegraf", "datadog")
# As in an agent, these live on and see everything; fresh ones are what they are held against.
AGED = {datadog: Parser(datadog=datadog) for datadog in (False, True)}


def check(data: bytes) -> None:
    """Raises AssertionError, or whatever the codec should not have raised."""
    for datadog, aged in AGED.items():
        for line in data.split(b"\n"):
            parsed = aged.line(line)
            assert parsed == Parser(datadog=datadog).line(line), "what came before changed the meaning of a line"
            check_parsed(parsed)
        list(aged.packet(data))


def check_parsed(parsed: Parsed) -> None:
    for refusal in parsed.refusals:
        assert refusal.reason in REASONS
        str(refusal)
    for sample in parsed.samples:
        check_sample(sample)


def check_sample(sample: Sample) -> None:
    assert sample.type in TYPES.values()
    assert sample.name
    assert isinstance(sample.value, str) if sample.type == "set" else math.isfinite(float(sample.value))
    assert MIN_RATE <= sample.rate <= 1
    assert len(sample.tags) <= MAX_TAGS
    assert list(sample.tags) == sorted(dict(sample.tags).items())
    assert not sample.delta or sample.type == "gauge"
    for dialect in DIALECTS:
        try:
            line = encode(sample, dialect)
        except ValueError:
            continue
        assert Parser().line(line.encode()) == Parsed([sample], []), f"{line!r} does not read back"


def seed(corpus: Path) -> None:
    """Fills an empty folder with the vectors."""
    corpus.mkdir(parents=True, exist_ok=True)
    if any(corpus.iterdir()):
        return
    for id_, vector in VECTORS.items():
        (corpus / f"vector-{id_}").write_bytes(vector.packet)


def main() -> None:
    arguments = sys.argv
    if all(argument.startswith("-") for argument in arguments[1:]):
        # Kept from run to run, so that each goes on where the last one stopped.
        arguments = [*arguments, str(Path(tempfile.gettempdir()) / "aie-fuzz-statsd")]
    for argument in arguments[1:]:
        if not argument.startswith("-") and not Path(argument).is_file():
            seed(Path(argument))
    atheris.Setup(arguments, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
