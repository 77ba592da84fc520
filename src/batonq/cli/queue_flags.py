"""Flags for the settings of a queue, made from the table of queue attributes, and settings as text."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import duration, number, size
from batonq.cli.quantities import parse_bytes, parse_duration_s
from batonq.priorities import PRIORITIES
from batonq.queue_attributes import MINIMUM_PRIORITY, REST_FIELDS, RETRY_POLICY, QueueAttribute, ValueKind

TAG_SEPARATOR = "="
RETRY_HELP = " Delays such as 1s,10s,1m; exponential:base=1s,factor=2,max=1h,jitter=0.1; or none."


class Setting(NamedTuple):
    """One setting of a queue: its flag, and its place in the REST API."""

    flag: str
    attribute: QueueAttribute

    @property
    def dest(self) -> str:
        return "setting_" + self.flag.removeprefix("--").replace("-", "_")

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the JSON fields, outermost first."""
        parts = (self.attribute.parent, self.attribute.member) if self.attribute.parent else (self.attribute.member,)
        return tuple(map(camel, parts))


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _settings() -> Iterator[Setting]:
    for rows in REST_FIELDS.values():
        for row in rows:
            name = row.keyword or f"{row.parent}_{row.member}"
            yield Setting("--" + name.removesuffix("_seconds").replace("_", "-"), row)


SETTINGS: tuple[Setting, ...] = tuple(_settings())


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings of the queue")
    for setting in SETTINGS:
        row = setting.attribute
        group.add_argument(
            setting.flag,
            dest=setting.dest,
            type=_reader(row),
            metavar=_metavar(row),
            help=row.meaning.replace("%", "%%") + (RETRY_HELP if row.name == RETRY_POLICY else ""),
        )
    group.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help="a tag; can be repeated")


def _metavar(row: QueueAttribute) -> str:
    if row.name == RETRY_POLICY:
        return "POLICY"
    if row.rest_boolean or row.kind is ValueKind.BOOLEAN:
        return "BOOLEAN"
    if row.choices:
        return "|".join(row.choices)
    if row.seconds:
        return "TIME"
    return "BYTES" if row.member.endswith("bytes") else "N" if row.numeric else "NAME"


def _reader(row: QueueAttribute) -> Callable[[str], Any]:
    if row.name == RETRY_POLICY:
        return parse_retry
    if row.rest_boolean or row.kind is ValueKind.BOOLEAN:
        return _boolean
    if row.kind is ValueKind.CHOICE:
        return _choice(row)
    if row.seconds:
        return parse_duration_s
    if row.member.endswith("bytes"):
        return parse_bytes
    if row.name == MINIMUM_PRIORITY:
        return _priority
    return _integer if row.numeric else str


def _priority(text: str) -> int:
    return PRIORITIES[text] if text in PRIORITIES else _integer(text)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} must be true or false")
    return text.lower() in ("true", "yes")


def _choice(row: QueueAttribute) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in row.choices:
            raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(row.choices)}")
        return int(text) if row.numeric else text

    return read


_EXPONENTIAL: dict[str, tuple[str, Callable[[str], float]]] = {
    "base": ("baseSeconds", parse_duration_s),
    "factor": ("factor", float),
    "max": ("maxSeconds", parse_duration_s),
    "jitter": ("jitter", float),
}


def parse_retry(text: str) -> dict[str, Any]:
    """`exponential`, `exponential:base=1s,factor=2,max=1h,jitter=0.1`, a schedule: `1s,10s,1m`, or `none`."""
    kind, _, rest = text.partition(":")
    try:
        if kind == "exponential":
            policy: dict[str, Any] = {"kind": "exponential"}
            for part in filter(None, rest.split(",")):
                name, _, value = part.partition("=")
                field, read = _EXPONENTIAL[name]
                policy[field] = read(value)
            return policy
        if text == "none":
            return {"kind": "none"}
        delays = [parse_duration_s(part) for part in text.removeprefix("schedule:").split(",")]
    except (KeyError, ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a retry policy such as exponential:base=1s,factor=2,max=1h,jitter=0.1, 1s,10s,1m or none"
        ) from None
    return {"kind": "schedule", "delaysSeconds": delays}


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields for the REST API that the flags ask for."""
    fields: dict[str, Any] = {}
    for setting in SETTINGS:
        value = getattr(arguments, setting.dest)
        if value is not None:
            *outer, last = setting.keys
            place = fields.setdefault(outer[0], {}) if outer else fields
            place[last] = value
    tags = parse_tags(arguments.tag)
    if tags:
        fields["tags"] = tags
    return fields


def flags_of(arguments: argparse.Namespace) -> list[str]:
    """The flags that were given for settings, as words of a command line."""
    given = ((setting, getattr(arguments, setting.dest)) for setting in SETTINGS)
    return [word for setting, value in given if value is not None for word in (setting.flag, _typed(setting, value))]


def _typed(setting: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if setting.attribute.name != RETRY_POLICY:
        return f"{value:g}s" if isinstance(value, float) else str(value)
    if value["kind"] == "schedule":
        return ",".join(f"{delay:g}s" for delay in value["delaysSeconds"])
    parts = [f"{name}={value[field]:g}" for name, (field, _) in _EXPONENTIAL.items() if field in value]
    return "exponential" + (":" if parts else "") + ",".join(parts)


def parse_tags(given: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for each in given:
        name, found, value = each.partition(TAG_SEPARATOR)
        if not found or not name:
            raise WrongUsage(f"--tag {each!r} must look like team=payments.")
        tags[name] = value
    return tags


def field_of(name: str) -> Setting:
    """The setting with this flag or this name in the REST API."""
    plain = name.removeprefix("--")
    for setting in SETTINGS:
        if plain in (setting.flag.removeprefix("--"), setting.keys[-1], ".".join(setting.keys)):
            return setting
    from batonq.cli.parser import did_you_mean

    known = [setting.flag.removeprefix("--") for setting in SETTINGS]
    raise WrongUsage(f"A queue has no setting {name!r}.{did_you_mean(plain, known)}")


def in_words_of_flags(text: str) -> str:
    """An error of the server with the names of flags instead of the fields of the REST API."""
    return _FIELD.sub(lambda found: _FLAGS.get(found[0], found[0]), text)


_FLAGS = {".".join(setting.keys): setting.flag for setting in SETTINGS}
_FIELD = re.compile(r"\b[a-z]+[A-Z][A-Za-z]*\b|\bdeduplication\.[A-Za-z]+\b")


def shown_settings(queue: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings of a queue as text, by the names of their flags. Settings without a value are left out."""
    for setting in SETTINGS:
        value: Any = queue
        for key in setting.keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        yield setting.flag.removeprefix("--"), _shown(setting.attribute, value)


def _shown(row: QueueAttribute, value: Any) -> str:
    if row.name == RETRY_POLICY:
        return shown_retry(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if row.seconds:
        return duration(value) if value else "0s"
    if row.member.endswith("bytes"):
        return size(value) if value else "no limit"
    return number(value) if isinstance(value, int) else str(value)


def shown_retry(policy: dict[str, Any]) -> str:
    if policy.get("kind") == "exponential":
        return (
            f"exponential: {duration(policy['baseSeconds'])}, times {policy['factor']:g} up to "
            f"{duration(policy['maxSeconds'])}, jitter {policy['jitter']:g}"
        )
    return "schedule: " + ", ".join(map(duration, policy["delaysSeconds"]))
