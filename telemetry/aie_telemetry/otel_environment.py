"""OpenTelemetry's standard variables, as its specification wants them: what cannot be used is told once and ignored.

The SDK itself raises for some of them, when it is imported even, and for others when an exporter is made. So what cannot be used is
taken out of the environment (or brought to what can, where it is only too large) before the SDK sees it, by a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_SURELY_MS: Final = 60.0
"""The specification means milliseconds, Python's SDK reads seconds: nobody waits longer than 60 seconds for a collector, and nobody
less than 60 milliseconds."""
_TOLD_MS: Final = 1000.0
"""Milliseconds of less than a second may have been meant as seconds: what is used is told."""
_LONGEST_TIMEOUT_MS: Final = 60_000.0
_MOST_DIGITS: Final = 18
_SECRET: Final = re.compile(r"^(\w+://)?.*@|(?<=\?).+", re.DOTALL)
"""All before the last @, but for a scheme: a password may hold any character; and what stands in a query."""


class Told(NamedTuple):
    """A variable whose value is not used as it is: what is accepted, and what is used instead (None: it counts as not set)."""

    name: str
    value: str
    accepted: str
    instead: str | None

    def __str__(self) -> str:
        # A URL may hold a password.
        value = _SECRET.sub(lambda found: f"{found[1] or ''}***@" if found[0].endswith("@") else "***", self.value)
        what = "it is ignored" if self.instead is None else f"{self.instead} is used"
        return f"{self.name}={value!r}: {what}: accepted: {self.accepted}"


class Rule(NamedTuple):
    """`read` gives the value to be used for a text without blanks around it; None where there is none."""

    accepted: str
    read: Callable[[str], str | None]


def one_of(*words: str) -> Rule:
    """One of some words, in whatever case."""
    return Rule(", ".join(words), lambda text: text.lower() if text.lower() in words else None)


def number(least: float, most: float, unit: str) -> Rule:
    """A number above 0; what is less than `least` or more than `most` is taken for that."""

    def read(text: str) -> str | None:
        value = _number(text)
        if value is None or value <= 0:
            return None
        return text if least <= value <= most else f"{min(max(value, least), most):g}"

    return Rule(f"{least:.10g} to {most:.10g} ({unit})", read)


def whole(least: int, most: int) -> Rule:
    """A whole number; what is more than `most` is taken for that."""

    def read(text: str) -> str | None:
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS) or int(text) < least:
            return None
        return text if int(text) <= most else str(most)

    return Rule(f"{least} to {most}", read)


def _timeout(text: str) -> str | None:
    value = _number(text)
    if value is None or value <= 0:
        return None
    if _SURELY_MS < value < _TOLD_MS:
        return f"{value / 1000:g}"
    return text if value <= _LONGEST_TIMEOUT_MS else f"{_LONGEST_TIMEOUT_MS:.0f}"


TIMEOUT: Final = Rule("up to 60 (seconds), or more than that, up to 60000 (milliseconds)", _timeout)
FLAG: Final = one_of("true", "false")
HTTP_URL: Final = Rule("http://HOST:PORT or https://HOST:PORT", lambda text: text if is_http_url(text) else None)
ADDRESS: Final = Rule("http://HOST:PORT, https://HOST:PORT or HOST:PORT", lambda text: text if _is_address(text) else None)
"""Of gRPC."""


def ignore_unusable(environment: MutableMapping[str, str], rules: Mapping[str, Rule]) -> list[Told]:
    """Takes out of `environment` what the rules have no use for, and changes what they read otherwise; returns what is to be told.
    A blank value counts as not set, which is nothing to tell."""
    told = []
    for name, rule in rules.items():
        value = environment.get(name)
        if value is None:
            continue
        text = value.strip()
        used = rule.read(text) if text else None
        if used is None:
            del environment[name]
        else:
            environment[name] = used
        if text and (used is None or used.lower() != text.lower()):
            told.append(Told(name, value, rule.accepted, used))
    return told


def first(environment: Mapping[str, str], names: Iterable[str]) -> str | None:
    """The first of them that is set: the signal's own stands before the one for all signals."""
    return next((environment[name] for name in names if environment.get(name)), None)


def is_on(environment: Mapping[str, str], exporter_name: str) -> bool:
    """Whether the SDK is not switched off, for all signals or by `exporter_name` for one."""
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not off and environment.get(exporter_name, "").strip().lower() != "none"


def timeout_s(environment: Mapping[str, str], names: Iterable[str], default_s: float) -> float:
    """For one push, the exporter's tries included. `environment` has been through `TIMEOUT`."""
    text = first(environment, names)
    if text is None:
        return default_s
    return float(text) / 1000 if float(text) > _SURELY_MS else float(text)


def below(base: str, path: str) -> str:
    """A signal's own path ("/v1/metrics") below a collector's URL, whose query stays."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path))


def signal_url(endpoint: str, path: str) -> str:
    """As `below`, unless the URL ends so already: for what is set by an option of ours."""
    parts = urlsplit(endpoint)
    own = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=own)) if own.endswith(path) else below(endpoint, path)


def is_http_url(text: str) -> bool:
    """Whether it is an http:// or https:// URL with a host."""
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not match
        return False


def resource(own: Mapping[str, str]) -> Resource:
    """What describes this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over `own`. Raises ImportError where the SDK
    is not there."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if not given.get(name)})


def _is_address(text: str) -> bool:
    """gRPC has more kinds of them (unix:, dns:) than URLs."""
    if text.startswith(("http://", "https://")):
        return is_http_url(text)
    try:
        return text.isprintable() and " " not in text and urlsplit(text) is not None
    except ValueError:
        return False


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
