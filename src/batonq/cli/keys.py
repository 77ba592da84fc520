"""`baton keys create`, `list`, `disable`, `enable`: the access keys of the secured profile.

The commands work on a running server, near or far, through its REST API, or directly on a data directory that no server
is using, which only --data names.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.connection import add_operator_arguments, connect
from batonq.cli.exit_codes import Unreachable
from batonq.cli.output import moment, note, print_json, print_table
from batonq.cli.quantities import parse_duration_s
from batonq.cli.server import find_if_running
from batonq.core.catalog.entries import ROLES, WRITE
from batonq.errors import InvalidInput
from batonq.node.settings import LOG_VARIABLE, Settings

DEFAULTS = Settings()
HEAD = ("KEY ID", "NAME", "ROLE", "ACCOUNT", "CREATED", "EXPIRES", "STATE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    create = add_action(actions, "create", "create a key; its secret is shown only once")
    create.add_argument("--name", default="", help="what the key is for, for people")
    create.add_argument(
        "--role",
        choices=ROLES,
        default=WRITE,
        help="read: only operations that change nothing; write: everything that concerns queues and messages; admin: "
        f"also changes of the server itself (default {WRITE})",
    )
    create.add_argument("--expires", type=parse_duration_s, metavar="DURATION", help="lifetime of the key: 12h, 90d")
    create.add_argument("--account", dest="key_account", help=f"account of the key (default {DEFAULTS.account})")
    create.add_argument("--output", metavar="FILE", help="write the key to a new file that only you can read")
    listing = add_action(actions, "list", "list the keys, without their secrets")
    disable = add_action(actions, "disable", "disable a key: requests signed with it are refused")
    enable = add_action(actions, "enable", "enable a key again")
    for action in (disable, enable):
        action.add_argument("id", help="id of the key")
    for action in (create, listing, disable, enable):
        action.add_argument("--json", action="store_true", help="print JSON")
        action.add_argument(
            "--log-url",
            default=os.environ.get(LOG_VARIABLE, ""),
            help="URL of the log, if it is not in the data directory: nats://… or postgres://… (default "
            f"${LOG_VARIABLE})",
        )
        add_operator_arguments(
            action, data_help="data directory of a server; if no server is running on it, it is changed directly"
        )


def run(arguments: argparse.Namespace) -> int:
    action: str = arguments.action
    if action != "create" and arguments.data and not os.path.isdir(arguments.data):
        raise InvalidInput(f"The data directory {arguments.data} does not exist.")
    path: str | None = arguments.output if action == "create" else None
    if path is None:
        _show(arguments, _ask(arguments))
        return 0
    with _private_file(path) as file:  # opened before the key is created: a secret that cannot be written would be lost
        answer = _ask(arguments)
        file.write(json.dumps(answer) + "\n" if arguments.json else _lines(answer))
    print(f"Key {answer['keyId']} was written to {path}.")
    return 0


def _ask(arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer of the REST API, or the same answer from a data directory that no server is using."""
    if arguments.data and not arguments.url and find_if_running(arguments.data) is None:
        from batonq.cli.keys_offline import change_keys  # loads the node, which a running server does not need here

        is_new = not os.path.isdir(arguments.data) or not os.listdir(arguments.data)
        answer = change_keys(Settings(data=arguments.data, log_url=arguments.log_url), arguments)
        if is_new:
            note(f"Created a new data directory, {arguments.data}, because no server uses it yet.")
        return answer
    method, path, body = _request(arguments)
    try:
        return connect(arguments).call(method, path, body)  # type: ignore[no-any-return]
    except Unreachable as problem:
        raise Unreachable(f"{problem.message} Without a running server, name its data directory with --data.") from None


def _request(arguments: argparse.Namespace) -> tuple[str, str, dict[str, Any] | None]:
    if arguments.action == "list":
        return "GET", "/v1/keys", None
    if arguments.action != "create":
        return "POST", f"/v1/keys/{quote(arguments.id, safe='')}:{arguments.action}", None
    body: dict[str, Any] = {"name": arguments.name, "role": arguments.role}
    if arguments.key_account:
        body["account"] = arguments.key_account
    if arguments.expires is not None:
        body["expiresInSeconds"] = round(arguments.expires)
    return "POST", "/v1/keys", body


def _show(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    action: str = arguments.action
    if action == "create":
        _protect_output()
    if arguments.json:
        print_json(answer)
    elif action == "create":
        print(_lines(answer), end="")
    elif action == "list":
        print_table(HEAD, map(_row, answer["keys"]))
    else:
        print(f"Key {answer['keyId']} is {action}d.")


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    return (
        key["keyId"],
        key["name"] or "-",
        key["role"],
        key["account"],
        moment(key["createdAtMs"]),
        moment(key["expiresAtMs"]) if "expiresAtMs" in key else "never",
        "disabled" if key["disabled"] else "expired" if key["expired"] else "active",
    )


def _lines(answer: dict[str, Any]) -> str:
    """The key under the names that Baton's client and command line read, and under those of the AWS SDKs."""
    pairs = (("ACCESS_KEY_ID", answer["keyId"]), ("SECRET_ACCESS_KEY", answer["secret"]))
    return "".join(f"{prefix}_{name}={value}\n" for prefix in ("BATON", "AWS") for name, value in pairs)


@contextmanager
def _private_file(path: str) -> Iterator[TextIO]:
    """A new file that only its owner can read; removed again if nothing was written to it."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"The file {path} already exists. Choose another name for --output, or remove the file."
        ) from None
    except OSError as problem:
        raise InvalidInput(f"Cannot write {path}: {problem.strerror}.") from None
    try:
        with open(handle, "w", encoding="ascii") as file:
            yield file
    except BaseException:
        os.unlink(path)
        raise


def _protect_output() -> None:
    """If a secret is redirected to a file, make the file private: the shell created it readable for others."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return  # not a regular file
    if not stat.S_ISREG(found.st_mode) or not stat.S_IMODE(found.st_mode) & 0o077:
        return
    if found.st_size == 0 and found.st_uid == os.geteuid():
        os.fchmod(sys.stdout.fileno(), 0o600)
        print("The output file contains a secret, so it was made readable only for you.", file=sys.stderr)
    else:
        print(
            "The output file contains a secret, and other users can read it. Use --output FILE instead.",
            file=sys.stderr,
        )
