"""The settings of queues and redrives, converted from Python names to wire names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from msgspec import UNSET

from batonq.client.models import RedriveEdit, RedriveFilter
from batonq.client.queue_settings import WIRE_NAMES


def to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TypeError for an unknown setting, as a call with a wrong keyword does."""
    unknown = settings.keys() - WIRE_NAMES.keys()
    if unknown:
        known = ", ".join(WIRE_NAMES)
        raise TypeError(f"{sorted(unknown)[0]!r} is not a queue setting; the settings are {known}")
    return {WIRE_NAMES[name]: value for name, value in settings.items()}


class RedriveSettings(TypedDict, total=False):
    """Settings of a redrive."""

    rate: int  # messages per second, up to 10,000; default 10
    ramp: float  # seconds until the full rate is reached
    filter: RedriveFilter | Mapping[str, Any]  # only these messages; a mapping uses the names of the wire
    edit: RedriveEdit | Mapping[str, Any]  # how to change them
    max_messages: int
    pause_when_dying_share: float  # the job pauses if a larger share of the last messages fails again, 0 to 1


REDRIVE_NAMES = {
    "rate": "maxMessagesPerSecond",
    "ramp": "rampSeconds",
    "filter": "filter",
    "edit": "edit",
    "max_messages": "maxMessages",
    "pause_when_dying_share": "pauseWhenDyingShare",
}


class ReplaySettings(TypedDict, total=False):
    """Settings of a replay. Times are aware datetimes, or seconds since the Unix epoch."""

    since: datetime | float  # only messages that entered the queue at this time or later
    until: datetime | float  # only messages that entered the queue before this time; default: now
    from_positions: Sequence[str]  # at most one per shard, such as those of `counters`
    until_positions: Sequence[str]
    rate: int  # messages per second, up to 10,000; default 100
    filter: RedriveFilter | Mapping[str, Any]  # only these messages; a mapping uses the names of the wire
    max_messages: int


REPLAY_NAMES = {
    "since": "from",
    "until": "until",
    "from_positions": "fromPositions",
    "until_positions": "untilPositions",
    "rate": "maxMessagesPerSecond",
    "filter": "filter",
    "max_messages": "maxMessages",
}


def replay_to_wire(to: str | None, dry_run: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = settings.keys() - REPLAY_NAMES.keys()
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]!r} is not a replay setting; the settings are {', '.join(REPLAY_NAMES)}")
    spec = {REPLAY_NAMES[name]: value for name, value in settings.items()}
    for name in ("from", "until"):
        if name in spec:
            spec[name] = _moment(spec[name])
    if to is not None:
        spec["targetQueue"] = to
    if dry_run:
        spec["dryRun"] = True
    return spec


def _moment(when: datetime | float) -> str:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise TypeError("a time of a replay needs a time zone, for example datetime.now(UTC)")
        return when.isoformat()
    return datetime.fromtimestamp(when, UTC).isoformat()


def redrive_to_wire(to: str | None, dry_run: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = settings.keys() - REDRIVE_NAMES.keys()
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]!r} is not a redrive setting; the settings are {', '.join(REDRIVE_NAMES)}")
    spec = {REDRIVE_NAMES[name]: value for name, value in settings.items()}
    if isinstance(spec.get("edit"), RedriveEdit):
        spec["edit"] = _edit_to_wire(spec["edit"])
    if to is not None:
        spec["targetQueue"] = to
    if dry_run:
        spec["dryRun"] = True
    return spec


def _edit_to_wire(edit: RedriveEdit) -> dict[str, Any]:
    texts = edit.replace_text
    fields = {
        "setAttributes": edit.set_attributes,
        "removeAttributes": edit.remove_attributes,
        "replaceText": None if texts is None else [{"find": old, "with": new} for old, new in texts.items()],
    }
    wire = {name: value for name, value in fields.items() if value is not None}
    if edit.replace_body is not UNSET:
        wire["replaceBody"] = edit.replace_body
    return wire
