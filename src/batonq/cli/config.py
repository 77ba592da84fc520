"""`baton config show`: the settings of a running server, and where each value comes from.

With `--local` no server is asked: the settings are those that `baton serve` would use here.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from batonq.cli.actions import add_action
from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import note, print_json, print_table


def _local(config_file: str) -> dict[str, Any]:
    """The answer of the REST API for the settings that a server would have here. Raises InvalidInput."""
    # loads the node, which a server elsewhere does not need
    from msgspec import to_builtins

    from batonq.api.rest.configuration import config_of
    from batonq.node.configuration import load

    return to_builtins(config_of(load({}, os.environ, config_file)))  # type: ignore[no-any-return]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    show = add_action(actions, "show", "show the settings of a server and the origin of each value")
    show.add_argument("setting", metavar="SETTING", nargs="?", help="only settings whose name contains this text")
    show.add_argument("--changed", action="store_true", help="only settings that differ from their default")
    show.add_argument(
        "--local", action="store_true", help="ask no server: show what `baton serve` would use here, without flags"
    )
    show.add_argument("--config", default="", metavar="FILE", help="with --local: configuration file of the server")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(show)


def run(arguments: argparse.Namespace) -> int:
    if arguments.config and not arguments.local:
        raise WrongUsage("--config needs --local: a running server has its own configuration file.")
    found = _local(arguments.config) if arguments.local else connect(arguments).get("/v1/config")
    wanted = (arguments.setting or "").replace("-", "_").lower()
    settings = [
        setting
        for setting in found["settings"]
        if wanted in setting["name"] and not (arguments.changed and setting["origin"] == "default")
    ]
    if arguments.json:
        print_json({**found, "settings": settings})
        return 0
    rows = []
    for setting in settings:
        origin = setting["origin"] + (f" {setting['file']}" if setting.get("file") else "")
        rows.append((setting["name"], _shown(setting["value"]), origin))
    if not rows:
        what = f"setting whose name contains {arguments.setting!r}" if wanted else "setting"
        note(f"No {what} differs from its default." if arguments.changed else f"There is no {what}.")
        return 0
    print_table(("SETTING", "VALUE", "ORIGIN"), rows)
    return 0


def _shown(value: Any) -> str:
    """As the configuration file has it, except that text has no quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
