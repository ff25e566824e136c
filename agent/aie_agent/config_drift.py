"""Values that only [drift] takes."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from aie_agent.config_values import OFF, HttpUrl, is_loopback

_LABELS: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")
"""A host's name as the resolver takes it, or an address."""


class WebhookUrl(str):
    """A URL of https, or of http to this host, or "off": what is wrong with an engine is nobody else's to read on its way."""

    __slots__ = ()

    @property
    def url(self) -> str | None:
        """None when switched off."""
        return None if self == OFF else str(self)

    @classmethod
    def parse(cls, value: object) -> WebhookUrl:
        """Raises ValueError for http to another host, for a URL with a password, which logs would show, and for what cannot be sent
        as it stands: other than ASCII (xn--.. and %.. say it), and names that no host has."""
        if value == OFF:
            return cls(OFF)
        url = HttpUrl.parse(value)
        if "@" in url or not (url.startswith("https://") or is_loopback(url.host)):
            raise ValueError(f'expected a URL of https, or of http to this host, without a password, or "off"; got {value!r}')
        if not url.isascii() or not _LABELS.fullmatch(url.host):
            raise ValueError(f"expected a URL in ASCII, other characters quoted (%C3%BC, xn--..), of a host; got {value!r}")
        return cls(url)


class Moment(float):
    """Seconds since the epoch, from a moment as ISO 8601 writes it."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Moment:
        """Raises ValueError for text that names no moment; without a time zone it is in this host's."""
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return cls(moment.astimezone().timestamp())
        except (ValueError, OverflowError):
            raise ValueError(f'expected a moment such as "2026-11-30T12:00:00+00:00", got {value!r}') from None
