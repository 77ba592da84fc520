"""Rewrite the generated parts of the documentation from the code: `make_docs.py [--check]`.

A generated part is between `<!-- generated: name -->` and `<!-- end generated -->`; the rest of a page is written by
hand. With --check nothing is written, and the exit code is 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import msgspec

from batonq import errors
from batonq.api.sqs import errors as sqs_errors
from batonq.cli import exit_codes, json_shapes
from batonq.cli.connection import GROUP, add_connection_arguments
from batonq.cli.main import build_parser
from batonq.core.shard.lifecycle import RECEIPTS, Rule, Standing, Verdict
from batonq.node import settings
from batonq.node.alarms.kinds import KINDS
from batonq.node.configuration import flag_of, variable_of
from batonq.node.monitoring import metrics
from batonq.pipeline.audit.kinds import FAMILIES
from batonq.pipeline.events import schema

DOCS = Path(__file__).resolve().parent.parent / "docs"
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# --- settings, metrics, errors ----------------------------------------------------------------


def settings_part() -> str:
    rows = []
    for field, doc in settings.documented():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append([f"`{flag_of(field.name)}`", f"`{variable_of(field.name)}`", default, doc])
    return table(("flag", "variable", "default", "meaning"), rows)


def metrics_part() -> str:
    rows = ([f"`{metric.name}`", metric.kind, metric.doc] for metric in metrics.ALL)
    return table(("metric", "kind", "meaning"), rows)


def alarm_kinds_part() -> str:
    rows = []
    for kind in KINDS.values():
        severity = f"{kind.severity}; critical: {kind.escalates}" if kind.escalates else kind.severity
        link = f"[`{kind.name}`](../how-to/runbook.md#{kind.name})"
        rows.append([link, kind.raised, _after(kind.raise_after_s), _after(kind.clear_after_s), severity, kind.remedy])
    return table(("kind", "raised when", "raised after", "ends after", "severity", "what to do"), rows)


def _after(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds else "at once"


def error_classes(root: type[errors.BatonError] = errors.BatonError) -> Iterator[type[errors.BatonError]]:
    """The errors that errors.py declares, the root first; packages may have more specific ones with the same codes."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from error_classes(child)


def errors_part() -> str:
    rows = []
    for error in error_classes():
        sqs = sqs_errors.translated(error("")).kind
        retry = "yes" if error.retryable else "no"
        rows.append([f"`{error.code}`", f"`{error.__name__}`", retry, f"`{sqs.code}`, {sqs.status}", _doc(error)])
    return table(("code", "class", "retry can succeed", "for SQS clients", "meaning"), rows)


def error_statuses_part() -> str:
    return table(("code", "HTTP status"), ([f"`{error.code}`", str(error.status)] for error in error_classes()))


def sqs_kinds() -> list[sqs_errors.Kind]:
    """The errors that an SQS client can get."""
    return [value for value in vars(sqs_errors).values() if isinstance(value, sqs_errors.Kind)]


def sqs_errors_part() -> str:
    rows = [[f"`{kind.code}`", f"`{kind.type}`", str(kind.status), kind.fault] for kind in sqs_kinds()]
    return table(("code", "type in JSON", "HTTP status", "fault"), rows)


def _doc(thing: object) -> str:
    return " ".join((thing.__doc__ or "").split())


# --- the command line -------------------------------------------------------------------------


def commands(
    parser: argparse.ArgumentParser | None = None, summary: str = ""
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command and subcommand with an action of its own, in the order of the help, with its help text."""
    parser = parser or build_parser()
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser, summary
    for group in groups:
        for entry in group._choices_actions:
            yield from commands(group.choices[entry.dest], entry.help or "")


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _option_name(action: argparse.Action) -> str:
    if action.option_strings:
        return ", ".join(f"`{name}`" for name in action.option_strings)
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    return f"`{metavar}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join(text.split())


def cli_part() -> str:
    parts = []
    for parser, summary in commands():
        parts.append(f"### {parser.prog}\n\n{summary[:1].upper()}{summary[1:]}.\n\n")
        shared = _connection_options(parser)
        rows = [[_option_name(action), _help(parser, action)] for action in options(parser) if action not in shared]
        if shared:
            names = ", ".join(_option_name(action) for action in shared)
            rows.append([names, "[the server and the credentials](#the-server-and-the-credentials)"])
        parts.append(table(("argument", "meaning"), rows) + "\n" if rows else "")
        parts.append(_json_line(parser.prog.removeprefix("baton ")))
    return "".join(parts)


def _connection_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The flags that name the server. They are explained once, for all commands."""
    return [action for group in parser._action_groups if group.title == GROUP for action in group._group_actions]


def cli_connection_part() -> str:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    rows = [[_option_name(action), _help(parser, action)] for action in _connection_options(parser)]
    return table(("flag", "meaning"), rows)


def exit_codes_part() -> str:
    return table(("exit code", "meaning"), ([str(code), text] for code, text in exit_codes.MEANINGS.items()))


# --- the JSON of the command line -------------------------------------------------------------


def _json_line(command: str) -> str:
    """The sentence about --json in the section of a command."""
    found = json_shapes.OUTPUTS.get(command)
    if found is None:
        return ""
    if isinstance(found, str):
        return f"With `--json` it prints the answer of the operation `{found}` ([REST API](rest-api.md)).\n\n"
    if issubclass(found, json_shapes.Printed):
        return f"With `--json` it prints [{found.__name__}](#{found.__name__.lower()}).\n\n"
    return f"With `--json` it prints [{found.__name__}](rest-api.md#{found.__name__.lower()}).\n\n"


def cli_json_part() -> str:
    """The shapes that only the command line has."""
    kinds = [kind for kind in vars(json_shapes).values() if isinstance(kind, type) and _is_printed(kind)]
    parts = []
    for kind in kinds:
        text = _doc(kind) if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(") else ""
        parts.append(f"### {kind.__name__}\n\n" + (f"{text}\n\n" if text else ""))
        rows = []
        for each in msgspec.structs.fields(kind):
            need = "always" if each.required else "if there is one"
            rows.append([f"`{each.encode_name}`", _type_name(each.type), need])
        parts.append(table(("field", "type", "present"), rows) + "\n")
    return "".join(parts)


def _is_printed(kind: type) -> bool:
    return issubclass(kind, json_shapes.Printed) and kind is not json_shapes.Printed


def _type_name(kind: object) -> str:
    """`list of DoctorFinding`, `number`, `"ok", "warning" or "critical"`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"list of {_type_name(inner[0])}"
    if origin is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(each) for each in inner)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        page = "" if issubclass(kind, json_shapes.Printed) else "rest-api.md"
        return f"[{kind.__name__}]({page}#{kind.__name__.lower()})"
    names = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}
    return names.get(kind, "object") if isinstance(kind, type) else "object"


# --- the lifecycle ----------------------------------------------------------------------------


def transitions_part() -> str:
    sys.path.insert(0, str(DOCS.parent))  # this file also runs as a script
    from tools.diagrams import transitions

    rows = ([start, stop, ", ".join(records)] for (start, stop), records in transitions().items())
    return table(("from", "to", "record"), rows)


def diagrams() -> dict[Path, str]:
    """The pictures that are drawn from the code."""
    sys.path.insert(0, str(DOCS.parent))
    from tools.diagrams import DIAGRAMS

    return {DOCS / "explanation" / name: draw() for name, draw in DIAGRAMS.items()}


def _verdict(verdict: Verdict) -> str:
    if verdict.act:
        return "done, recorded as late" if verdict.reason.name == "LATE_ACK" else "done"
    if verdict.error is not None:
        return f"refused: `{verdict.error.code}`"
    return "answered with success, changes nothing" + (", counted as stale" if verdict.stale else "")


def receipts_part() -> str:
    rows = []
    for operation in dict.fromkeys(key[0] for key in RECEIPTS):
        for rule in Rule:
            cells = [_verdict(RECEIPTS[operation, rule, standing]) for standing in Standing]
            rows.append([operation, rule.value, *cells])
    return table(("call", "queue", *(standing.value for standing in Standing)), rows)


def client_part() -> str:
    sys.path.insert(0, str(DOCS.parent))  # this file also runs as a script
    from tools import client_docs

    return client_docs.client_part()


def rest_part(name: str) -> Callable[[], str]:
    def part() -> str:
        sys.path.insert(0, str(DOCS.parent))
        from tools import rest_docs

        made: str = getattr(rest_docs, name)()
        return made

    return part


def scaling_part(name: str) -> Callable[[], str]:
    def part() -> str:
        sys.path.insert(0, str(DOCS.parent))
        from tools import scaling_docs

        made: str = getattr(scaling_docs, name)()
        return made

    return part


def data_part(name: str) -> Callable[[], str]:
    def part() -> str:
        sys.path.insert(0, str(DOCS.parent))
        from tools import data_docs

        made: str = getattr(data_docs, name)()
        return made

    return part


def worker_part(name: str) -> Callable[[], str]:
    def part() -> str:
        sys.path.insert(0, str(DOCS.parent))
        from tools import worker_docs

        made: str = getattr(worker_docs, name)()
        return made

    return part


def attributes_part(name: str) -> Callable[[], str]:
    def part() -> str:
        sys.path.insert(0, str(DOCS.parent))
        from tools import attribute_docs

        made: str = getattr(attribute_docs, name)()
        return made

    return part


def events_table_part() -> str:
    rows = ([f"`{column.name}`", column.kind, column.of, column.doc] for column in schema.columns(bodies=True))
    return table(("column", "kind", "events", "meaning"), rows)


def tables_part() -> str:
    """Every table of the lake except events, which has its own page."""
    from batonq.pipeline.tables.schema import tables

    parts = []
    for found in tables().values():
        laid = f" Files are laid out by {', '.join(f'`{name}`' for name in found.by)}." if found.by else ""
        parts.append(f"## {found.name}\n\n{found.doc}{laid}\n")
        if found.name != "events":
            rows = ([f"`{column.name}`", column.kind, column.doc] for column in found.columns)
            parts.append(table(("column", "kind", "meaning"), rows))
    return "\n".join(parts)


def spark_part(module: str) -> Callable[[], str]:
    """The options of one use of format("baton"), from the module that reads them."""

    def part() -> str:
        made = import_module(f"batonq.pipeline.spark.{module}").OPTIONS
        rows = (
            [f"`{name}`", f"`{default}`" if default and "`" not in default else default, doc]
            for name, default, doc in made
        )
        return table(("option", "default", "meaning"), rows)

    return part


def audit_part() -> str:
    parts = []
    for family, kinds in FAMILIES.items():
        rows = ([f"`{name}`", kind.rule, kind.found] for name, kind in kinds.items())
        parts.append(f"### The rules {family}\n\n" + table(("kind", "what holds", "what a violation says"), rows))
    return "\n".join(parts)


def message_columns_part() -> str:
    from batonq.pipeline.spark.messages_table import COLUMNS

    return table(("column", "kind", "meaning"), ([f"`{each.name}`", each.kind, each.doc] for each in COLUMNS))


def sink_columns_part() -> str:
    from batonq.pipeline.spark.sink_rows import COLUMNS

    rows = ([f"`{each.name}`", ", ".join(each.types) or "any", each.doc] for each in COLUMNS)
    return table(("column", "types", "meaning"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings_part,
    "metrics": metrics_part,
    "alarm-kinds": alarm_kinds_part,
    "errors": errors_part,
    "error-statuses": error_statuses_part,
    "sqs-errors": sqs_errors_part,
    "cli": cli_part,
    "cli-connection": cli_connection_part,
    "cli-exit-codes": exit_codes_part,
    "cli-json": cli_json_part,
    "transitions": transitions_part,
    "receipts": receipts_part,
    "client": client_part,
    "queue-attributes": attributes_part("queue_attributes_part"),
    "sqs-queue-attributes": attributes_part("sqs_queue_attributes_part"),
    "queue-setting-names": attributes_part("queue_setting_names_part"),
    "queue-readings": attributes_part("queue_readings_part"),
    "message-attributes": attributes_part("message_attributes_part"),
    "system-attributes": attributes_part("system_attributes_part"),
    "baton-headers": attributes_part("headers_part"),
    "events-table": events_table_part,
    "audit": audit_part,
    "tables": tables_part,
    "spark-history": spark_part("history_options"),
    "spark-messages": spark_part("messages_source"),
    "spark-message-columns": message_columns_part,
    "spark-replay": spark_part("messages_replay"),
    "spark-sink": spark_part("sink"),
    "spark-sink-columns": sink_columns_part,
    "rest-operations": rest_part("operations_part"),
    "rest-parameters": rest_part("parameters_part"),
    "rest-types": rest_part("types_part"),
    "scaling": scaling_part("scaling_part"),
    "outage": scaling_part("outage_part"),
    "web": scaling_part("web_part"),
    "idempotency": data_part("idempotency_part"),
    "outbox": data_part("outbox_part"),
    "worker": worker_part("worker_part"),
    "worker-metrics": worker_part("worker_metrics_part"),
}


def rewritten(text: str) -> str:
    """The page with its generated parts updated."""
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match['name']]().strip()}\n\n{match[3]}", text)


def outdated() -> dict[Path, str]:
    """The pages and pictures that differ from the code, each with what it should contain."""
    wanted = {page: rewritten(page.read_text()) for page in sorted(DOCS.rglob("*.md"))} | diagrams()
    return {file: text for file, text in wanted.items() if not file.exists() or file.read_text() != text}


def main(arguments: list[str]) -> int:
    files = outdated()
    if "--check" in arguments:
        for file in files:
            print(f"{file.relative_to(DOCS.parent)} is out of date: run make docs", file=sys.stderr)
        return 1 if files else 0
    for file, text in files.items():
        file.write_text(text)
        print(f"wrote {file.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
