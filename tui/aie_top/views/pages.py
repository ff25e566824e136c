"""The pages on top of the main screen: help, and all about an engine, a problem or a host. Each is a list of lines to scroll."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aie_telemetry.api import Agent, Engine, Process
from aie_top import commands
from aie_top import format as fmt
from aie_top.columns.drift import DRIFT_COLUMNS
from aie_top.columns.engines import ENGINE_COLUMNS
from aie_top.columns.gpu_processes import GPU_PROCESS_COLUMNS
from aie_top.columns.gpus import GPU_COLUMNS
from aie_top.columns.hosts import HOST_COLUMNS, memory_used
from aie_top.columns.locks import LOCK_COLUMNS
from aie_top.columns.memory import MEMORY_COLUMNS
from aie_top.columns.waits import WAIT_COLUMNS
from aie_top.latency import writer
from aie_top.rows import EngineRow, Frame, HostRow, ProblemRow
from aie_top.table import Column, body, choose, header
from aie_top.text import Line, Span, Tone, crop, fit, line, wrap
from aie_top.views.cuda import cuda_lines
from aie_top.views.drift import of_engine as drift_of_engine
from aie_top.views.facts import LABEL_WIDTH, facts, pair, title, with_unit
from aie_top.views.gpus import process_table
from aie_top.views.history import band_lines, engine_band
from aie_top.views.problems import MARKS
from aie_top.views.tables import Place
from aie_top.views.waits import of_engine

_KEY_WIDTH: Final = 11
_CHART_HEIGHT: Final = 5


def help_lines(width: int) -> list[Line]:
    lines: list[Line] = []
    for group, members in commands.groups().items():
        lines.append(title(group.upper()))
        lines += [one for command in members for one in pair(command.shown, command.title, _KEY_WIDTH, "key", width)]
    tables: Sequence[tuple[str, Sequence[Column[Any]]]] = (
        ("ENGINE COLUMNS", ENGINE_COLUMNS),
        ("WAIT COLUMNS", WAIT_COLUMNS),
        ("LOCK COLUMNS", LOCK_COLUMNS),
        ("GPU COLUMNS", GPU_COLUMNS),
        ("GPU PROCESS COLUMNS", GPU_PROCESS_COLUMNS),
        ("MEMORY COLUMNS", MEMORY_COLUMNS),
        ("DRIFT COLUMNS", DRIFT_COLUMNS),
        ("HOST COLUMNS", HOST_COLUMNS),
    )
    for name, columns in tables:
        lines.append(title(name))
        lines += [
            one for column in columns if column.title for one in pair(column.title, column.about, LABEL_WIDTH, "normal", width)
        ]
    lines += [
        line(),
        line(Span(" “-” is not known; it is never shown as 0. A mark beside a number is never only a colour.", "dim")),
    ]
    return [crop(one, width) for one in lines]


def engine_page(frame: Frame, key: tuple[str, str], width: int) -> list[Line]:
    row = next((row for row in frame.engines if row.key == key), None)
    if row is None:
        return [line(Span(f" {key[1]} is gone.", "warn")), line(Span(" esc goes back.", "dim"))]
    engine = row.engine
    lines = [
        title(f"ENGINE {engine.name}"),
        *facts(_about_engine(row), width),
        *_latencies(engine),
        title("TRAFFIC"),
        *facts(_traffic(engine), width),
        *of_engine(row, frame.window_s, width),
        *cuda_lines(engine.cuda, width),
        *_memory_table(frame, row, width),
        *drift_of_engine(frame, row, width),
        title("ON THE HOST"),
        *facts(_on_host(engine), width),
        *_processes(engine.processes, width),
        *_on_gpus(frame, row, width),
    ]
    band = engine_band(row, frame.memory)
    if band:
        lines += band_lines(band, width, _CHART_HEIGHT, len(band))
    return [crop(one, width) for one in lines]


def problem_page(row: ProblemRow, width: int) -> list[Line]:
    mark, tone = MARKS[row.severity]
    sections: Sequence[tuple[str, Sequence[str]]] = (
        ("WHY", row.why),
        ("WHAT IT EXPLAINS", row.explains),
        ("WHAT TO DO", (row.advice,) if row.advice else ()),
        ("WHAT CHANGED JUST BEFORE", row.changes),
        ("WHAT THE AGENT COULD NOT SEE", row.not_visible),
        ("RUNBOOK", (row.runbook,) if row.runbook else ()),
    )
    lines = [title("WHAT IS WRONG")]
    lines += [
        line(Span(f" {mark if at == 0 else ' '} ", tone), Span(text, "strong"))
        for at, text in enumerate(wrap(row.summary, width - 4))
    ]
    confidence = fmt.percent(row.confidence) if row.confidence is not None else None
    lines += facts(
        (
            ("severity", row.severity),
            ("subject", row.subject),
            ("host", row.host),
            ("for", fmt.age(row.age_s) if row.age_s is not None else None),
            ("confidence", confidence),
        ),
        width,
    )
    for name, sentences in sections:
        if sentences:
            lines.append(title(name))
            lines += [line("  ", Span(part)) for sentence in sentences for part in wrap(sentence, width - 3)]
    return [crop(one, width) for one in lines]


def host_page(row: HostRow, width: int) -> list[Line]:
    lines = [title(f"HOST {row.name}"), *facts(_about_host(row), width)]
    if row.about is not None:
        lines += [title("AGENT"), *facts(_about_agent(row.about), width)]
    return [crop(one, width) for one in (*lines, *_sources(row, width))]


def _about_host(row: HostRow) -> Iterable[tuple[str, str | None]]:
    host = row.host
    yield "asked at", row.agent
    yield "connection", row.phase if row.stale_s is None else f"{row.phase}, data is {fmt.age(row.stale_s)} old"
    yield "reason", row.reason
    if host is None:
        return
    yield "kernel", host.kernel
    yield "CPUs", fmt.count(host.cpus)
    yield "busy", fmt.percent(host.cpu_busy_ratio)
    yield "stolen", fmt.percent(host.cpu_steal_ratio)
    yield "waits for disks", fmt.percent(host.cpu_iowait_ratio)
    yield "load", fmt.rate(host.load1)
    yield "memory", f"{fmt.size(memory_used(host))} of {fmt.size(host.memory_total_bytes)}"
    yield "swap", f"{fmt.size(host.swap_used_bytes)} of {fmt.size(host.swap_total_bytes)}"
    yield "major faults", with_unit(fmt.rate(host.major_faults_per_second), "/s")
    for resource, stalled in host.pressure.items():
        yield f"stalled: {resource}", f"some {fmt.percent(stalled.some_ratio)}, all {fmt.percent(stalled.full_ratio)}"


def _about_agent(about: Agent) -> Iterable[tuple[str, str | None]]:
    yield "version", about.version
    yield "up for", fmt.age(about.uptime_s)
    yield "its CPU", with_unit(fmt.percent(about.cpu_cores), "of a core")
    yield "its memory", fmt.size(about.resident_bytes)
    yield "series", f"{about.series} of at most {about.series_limit}"
    yield "StatsD", with_unit(fmt.rate(about.statsd_samples_per_second), "samples/s")
    for what, number in about.drops.items():
        yield "dropped lately", f"{fmt.count(number)} {what}"


def _sources(row: HostRow, width: int) -> list[Line]:
    if not row.sources:
        return []
    lines = [title("WHAT THE AGENT SEES")]
    for source in row.sources:
        state, tone = _SOURCE_STATES[source.state]
        seen = f"{fmt.age(source.last_success_age_s)} ago" if source.last_success_age_s is not None else ""
        lines.append(
            line("  ", Span(fit(source.name, LABEL_WIDTH + 8, middle=True)), " ", Span(fit(state, 8), tone), Span(seen, "dim"))
        )
        lines += [line("    ", Span(part, "dim")) for part in wrap(source.reason or "", width - 5)]
    return lines


_SOURCE_STATES: Final[dict[str, tuple[str, Tone]]] = {"up": ("up", "good"), "down": ("DOWN", "bad"), "waiting": ("waiting", "warn")}


def _about_engine(row: EngineRow) -> Iterable[tuple[str, str | None]]:
    engine = row.engine
    state = engine.state if row.stale_s is None else f"stale: last seen {fmt.age(row.stale_s)} ago ({engine.state})"
    yield "state", state
    yield "note", engine.note
    yield "page", engine.page_reason
    yield "host", row.host
    yield "model", engine.model
    yield "engine", " ".join(filter(None, (engine.kind, engine.version))) or None
    yield "device", engine.device
    yield "container", engine.container
    yield "pod", engine.pod
    yield "up for", fmt.age(engine.uptime_s)
    yield "measured by", ", ".join(engine.metrics_from) or None


_LATENCIES: Final = (
    ("first token", "time_to_first_token"),
    ("between tokens", "inter_token"),
    ("in tokenizer", "tokenize"),
    ("in queue", "queue"),
    ("prefill", "prefill"),
    ("decode", "decode"),
    ("whole request", "duration"),
)


def _latencies(engine: Engine) -> list[Line]:
    rows = [(name, field, getattr(engine, field)) for name, field in _LATENCIES]
    head = Line((Span(" "), Span(fit("LATENCY", LABEL_WIDTH), "strong"), Span(f"{'P50':>9}{'P99':>10}", "dim")), "title")
    stages = {"in tokenizer", "prefill", "decode"}  # of engines that tell of them
    known = [(name, writer(field), q) for name, field, q in rows if name not in stages or q.p99_seconds is not None]
    texts = ((name, write(q.p50_seconds), write(q.p99_seconds)) for name, write, q in known)
    return [head, *(line("  ", Span(fit(name, LABEL_WIDTH), "dim"), Span(f"{p50:>8}  {p99:>8}")) for name, p50, p99 in texts)]


def _traffic(engine: Engine) -> Iterable[tuple[str, str | None]]:
    yield "requests", with_unit(fmt.rate(engine.requests_per_second), "/s")
    yield "in error", with_unit(fmt.rate(engine.errors_per_second), "/s")
    yield "running", fmt.count(engine.running)
    yield "waiting", fmt.count(engine.waiting)
    yield "tokens out", with_unit(fmt.rate(engine.generation_tokens_per_second), "tok/s")
    yield "tokens in", with_unit(fmt.rate(engine.prompt_tokens_per_second), "tok/s")
    yield "KV cache", with_unit(fmt.percent(engine.kv_usage_ratio), "in use")
    yield "last token", with_unit(fmt.age(engine.last_token_age_s), "ago")
    yield "each second", ", ".join(f"{fmt.rate(number)} {name}" for name, number in engine.outcomes_per_second.items()) or None


def _on_host(engine: Engine) -> Iterable[tuple[str, str | None]]:
    yield "CPU", with_unit(fmt.rate(engine.cpu_cores), "cores")
    yield "waits for a CPU", with_unit(fmt.rate(engine.run_queue_threads), "threads on average")
    yield "throttled", with_unit(fmt.rate(engine.throttled_cores), "cores taken by its quota")
    yield "major faults", with_unit(fmt.rate(engine.major_faults_per_second), "/s")


def _memory_table(frame: Frame, row: EngineRow, width: int) -> list[Line]:
    held = [one for one in frame.memory if (one.agent, one.memory.engine) == row.key]
    if not held:
        return []
    columns = [column for column in MEMORY_COLUMNS if column.key != "host"]
    layout = choose(columns, held, width)
    return [header(layout, focused=False), *(body(layout, one) for one in held)]


def _on_gpus(frame: Frame, row: EngineRow, width: int) -> list[Line]:
    held = [one for one in frame.gpu_processes if one.agent == row.agent and one.process.engine == row.engine.name]
    return process_table(held, Place(width, len(held) + 1), several_hosts=False) if held else []


def _processes(processes: Sequence[Process], width: int) -> list[Line]:
    if not processes:
        return []
    head = f"{'PROCESS':>9} {'MEMORY':>{fmt.SIZE_WIDTH}} {'CPU':>6} {'THREADS':>7}  COMMAND"
    lines = [line(" ", Span(head, "dim"), fill="title")]
    for one in processes:
        memory, cpu, threads = fmt.size(one.resident_anon_bytes), fmt.rate(one.cpu_cores), fmt.count(one.threads)
        numbers = f"{one.tgid:>9} {memory:>{fmt.SIZE_WIDTH}} {cpu:>6} {threads:>7}  "
        lines.append(line(" ", Span(numbers), Span(fit(one.command, max(width - len(numbers) - 1, 1)).rstrip(), "dim")))
    return lines
