"""Settings of queues and redrives, by the names that Python programs use, made into those of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from msgspec import UNSET

from batonq.client.models import RedriveEdit, RedriveFilter
from batonq.client.queue_settings import WIRE_NAMES


def to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TypeError for a setting that there is not, as a call with a wrong keyword does."""
    unknown = settings.keys() - WIRE_NAMES.keys()
    if unknown:
        known = ", ".join(WIRE_NAMES)
        raise TypeError(f"a queue has no setting {sorted(unknown)[0]!r}; it has {known}")
    return {WIRE_NAMES[name]: value for name, value in settings.items()}


class RedriveSettings(TypedDict, total=False):
    """What a redrive can be told."""

    rate: int  # messages a second, up to 10,000; 10 if you say nothing
    ramp: float  # seconds until the rate is reached
    filter: RedriveFilter | Mapping[str, Any]  # only these; a mapping has the names of the wire
    edit: RedriveEdit | Mapping[str, Any]  # changed like this
    max_messages: int
    pause_when_dying_share: float  # of the last ones redriven, 0 to 1: above it the job pauses itself


REDRIVE_NAMES = {
    "rate": "maxMessagesPerSecond",
    "ramp": "rampSeconds",
    "filter": "filter",
    "edit": "edit",
    "max_messages": "maxMessages",
    "pause_when_dying_share": "pauseWhenDyingShare",
}


def redrive_to_wire(to: str | None, dry_run: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = settings.keys() - REDRIVE_NAMES.keys()
    if unknown:
        raise TypeError(f"a redrive has no setting {sorted(unknown)[0]!r}; it has {', '.join(REDRIVE_NAMES)}")
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
