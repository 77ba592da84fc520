"""The flags of `baton serve`: one per setting. `--help` shows the common ones, `--help-all` all."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field
from typing import Any

from batonq.node.configuration import CONFIG_VARIABLE, flag_of, load, parse
from batonq.node.settings import Settings, documented

CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}
ALWAYS_SHOWN = {"help", "help_all", "config", "secure"}


class CommonHelp(argparse.HelpFormatter):
    """Leaves out the flags that few people need."""

    shown = ALWAYS_SHOWN | {entry.name for entry, _ in documented() if entry.metadata["common"]}

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *rest: Any, **named: Any) -> None:
        super().add_usage(usage, [action for action in actions if action.dest in self.shown], (), **named)

    def add_argument(self, action: argparse.Action) -> None:
        if action.dest in self.shown:
            super().add_argument(action)


class _HelpAll(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.formatter_class = argparse.HelpFormatter
        parser.print_help()
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = CommonHelp
    parser.epilog = (
        "Each setting can also be an environment variable (--port is BATON_PORT) or a line of the configuration file "
        "(port = 9324). A flag wins over a variable, and a variable over the file."
    )
    parser.add_argument("--help-all", nargs=0, action=_HelpAll, help="show all settings and exit")
    parser.add_argument(
        "--config", default="", metavar="FILE", help=f"configuration file in TOML (default ${CONFIG_VARIABLE})"
    )
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument(
        "--dev",
        action="store_false",
        dest="secure",
        default=argparse.SUPPRESS,
        help="development profile: signatures are not checked (default on a loopback address)",
    )
    profile.add_argument(
        "--secure",
        action="store_true",
        default=argparse.SUPPRESS,
        help="secured profile: every request must be signed with an access key",
    )
    for entry, doc in documented():
        if entry.name != "secure":
            _add_setting(parser, entry, doc)


def _add_setting(parser: argparse.ArgumentParser, entry: Field[Any], doc: str) -> None:
    default = "" if entry.default in (None, "", False) else f" (default {entry.default})"
    if entry.name == "shards":
        default = " (default one per process)"
    text = doc.replace("%", "%%") + default
    if str(entry.type).startswith("bool"):
        parser.add_argument(
            flag_of(entry.name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        return
    parser.add_argument(
        flag_of(entry.name),
        type=_type_of(entry),
        default=argparse.SUPPRESS,
        choices=CHOICES.get(entry.name),
        metavar=None if entry.name in CHOICES else _metavar(entry),
        help=text,
    )


def _type_of(entry: Field[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse(entry, text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return read


def _metavar(entry: Field[Any]) -> str:
    kind = str(entry.type).partition(" ")[0]
    return "BYTES" if "bytes" in entry.name else {"int": "N", "float": "NUMBER"}.get(kind, "TEXT")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings from the flags that were given, the environment and the configuration file. Raises InvalidInput."""
    given = vars(arguments)
    flags = {entry.name: given[entry.name] for entry, _ in documented() if entry.name in given}
    return load(flags, os.environ, arguments.config)
