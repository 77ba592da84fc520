"""The reference of the Python client, from its signatures, docstrings and field comments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from batonq import client, embedded, testing
from batonq.client import batches, models, queue_settings, retry, schedule_models, specs, tracing
from batonq.client.aio import baton as aio_baton

CLASSES = (client.Baton, client.Queue, client.Message, client.Job, client.QueueSchedules, client.AllSchedules)
FUNCTIONS = (
    (aio_baton.connect, "batonq.connect"),
    (embedded.open, "batonq.open"),
    (embedded.open_async, "await batonq.open_async"),
    (testing.memory, "batonq.testing.memory"),
    (testing.memory_async, "await batonq.testing.memory_async"),
    (tracing.within, "batonq.client.tracing.within"),
    (tracing.start, "batonq.client.tracing.start"),
)
VALUES: tuple[type, ...] = (
    queue_settings.QueueSettings,
    models.Outgoing,
    models.Sent,
    models.MessageFields,
    models.DeadLetter,
    models.Failure,
    models.Nack,
    models.Peeked,
    models.Stats,
    models.Explanation,
    models.Finding,
    models.Flow,
    models.BusyGroup,
    queue_settings.QueueInfo,
    models.Exponential,
    models.Schedule,
    models.NoRetryDelay,
    queue_settings.Deduplication,
    specs.RedriveSettings,
    models.RedriveFilter,
    models.RedriveEdit,
    models.JobFields,
    schedule_models.ScheduleSettings,
    schedule_models.ScheduleInfo,
    retry.Retries,
    batches.BatchLimits,
)
# The fields are in a separate class, so that both clients share them.
WIDTH = 100
NAMES = {"MessageFields": "Fields of a message", "JobFields": "Fields of a job"}
_FIELD = re.compile(
    r"^(?P<above>(?:    # .*\n)*)    (?P<name>[a-z]\w*): "
    r"(?P<type>.+?)(?: = (?P<default>.+?))?(?:  # (?P<note>.*))?$",
    re.MULTILINE,
)
_DEFAULT = re.compile(r"field\((?:default=(?P<default>[^,]+), )?name=.*\)")


def client_part() -> str:
    parts: list[str] = []
    for kind in CLASSES:
        parts.append(f"### {kind.__name__}\n\n{doc(kind)}\n")
        if kind is client.Baton:
            parts.append(block(kind, "Baton"))
        noun = kind.__name__.lower()
        for name, member in members(kind):
            if isinstance(member, property):
                parts.append(f"#### {noun}.{name}\n\n{doc(member)}\n")
            else:
                call = f"{'await ' if inspect.iscoroutinefunction(member) else ''}{noun}.{name}"
                parts.append(f"#### {noun}.{name}\n\n{block(member, call)}\n{doc(member)}\n")
    parts.append("### Functions\n")
    for function, call in FUNCTIONS:
        parts.append(f"#### {call.removeprefix('await ')}\n\n{block(function, call)}\n{doc(function)}\n")
    parts.append("### Values\n")
    for value in VALUES:
        parts.append(f"#### {NAMES.get(value.__name__, value.__name__)}\n\n{doc(value)}\n\n{fields(value)}")
    return "\n".join(parts)


def members(kind: type) -> Iterator[tuple[str, Callable[..., object] | property]]:
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def block(function: Callable[..., object], call: str) -> str:
    """The call with its arguments, on one line if it fits."""
    signature = inspect.signature(function)
    arguments: list[str] = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
            star = True
        arguments.append(_argument(parameter))
    returned = "" if inspect.isclass(function) else f" -> {_type(signature.return_annotation)}"
    line = f"{call}({', '.join(arguments)}){returned}"
    if len(line) > WIDTH:
        inside = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{call}(\n{inside}){returned}"
    return f"```text\n{line}\n```\n"


def _argument(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    stars = "**" if kind is parameter.VAR_KEYWORD else "*" if kind is parameter.VAR_POSITIONAL else ""
    text = f"{stars}{parameter.name}: {_type(parameter.annotation)}"
    default = parameter.default
    if default is parameter.empty:
        return text
    # The repr of a function is not stable.
    return f"{text} = {default.__name__.replace('<lambda>', '…') if callable(default) else repr(default)}"


def _type(annotation: object) -> str:
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", str(annotation))
    return re.sub(r"\b(tls|sync|os)\.", "", text)


def doc(thing: object) -> str:
    """A docstring as Markdown paragraphs."""
    return (inspect.getdoc(thing) or "").strip()


def _note(found: re.Match[str]) -> str:
    """The comment beside a field, or above it."""
    above = " ".join(line.removeprefix("    # ") for line in found["above"].splitlines())
    return found["note"] or above


def fields(kind: type) -> str:
    body = inspect.getsource(kind).partition('"""')[2].partition('"""')[2].partition("\n    @")[0]
    rows = ["| field | type | default | |", "| --- | --- | --- | --- |"]
    for found in _FIELD.finditer(body):
        default = found["default"] or ""
        named = _DEFAULT.fullmatch(default)
        if named is not None:
            default = named["default"] or ""
        cells = [f"`{found['name']}`", f"`{found['type']}`", f"`{default}`" if default else "", _note(found)]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"
