"""Times that people write into forms: a date, or how long ago."""

from __future__ import annotations

from datetime import UTC, datetime

from batonq.quantities import read_duration_s

HELP = "2h (ago), or a time such as 2026-11-17T08:30Z"


def read_moment(text: str, now_ms: int) -> str:
    """A time in RFC 3339, from `90`, `2h` or `3d` (that long ago), or a date with or without a time and a time zone.
    Without a time zone it is UTC. Raises ValueError, with words for the person.
    """
    given = text.strip()
    try:
        at = datetime.fromtimestamp(now_ms / 1000 - read_duration_s(given), UTC)
    except (ValueError, OverflowError):
        pass
    else:
        return _shown(at)
    try:
        at = datetime.fromisoformat(given.replace(" UTC", "Z"))
    except ValueError:
        raise ValueError(f"Write {HELP}, not {given[:40]!r}.") from None
    return _shown(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def _shown(at: datetime) -> str:
    text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00").removesuffix(".000") + "Z"
