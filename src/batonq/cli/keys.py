"""`baton keys create`, `list`, `disable`: the access keys of the secured profile.

The commands work on a running server, through its admin endpoint and the token in the data directory, or directly on a
data directory that no server is using.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from batonq.cli.actions import add_action
from batonq.cli.admin import call
from batonq.cli.server import find_if_running
from batonq.core.catalog.machine import Catalog
from batonq.errors import InvalidInput
from batonq.node.node import Node
from batonq.node.operations.pages import make_key, show_key
from batonq.node.settings import LOG_VARIABLE, Settings

DEFAULTS = Settings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    create = add_action(actions, "create", "create a key; its secret is shown only once")
    create.add_argument("--account", default=DEFAULTS.account, help=f"account of the key (default {DEFAULTS.account})")
    create.add_argument("--output", metavar="FILE", help="write the key to a new file that only you can read")
    listing = add_action(actions, "list", "list the keys, without their secrets")
    disable = add_action(actions, "disable", "disable a key: requests signed with it are refused")
    disable.add_argument("id", help="id of the key")
    for action in (create, listing, disable):
        action.add_argument("--data", default=DEFAULTS.data, help=f"data directory (default {DEFAULTS.data})")
        action.add_argument(
            "--log",
            default=os.environ.get(LOG_VARIABLE, ""),
            help="URL of the log, if it is not in the data directory: nats://… or postgres://… (default $BATON_LOG)",
        )


def run(arguments: argparse.Namespace) -> int:
    action: str = arguments.action
    given: dict[str, Any] = {}
    if action == "create":
        given["account"] = arguments.account
    elif action == "disable":
        given["id"] = arguments.id
    if action != "create" and not os.path.isdir(arguments.data):
        raise InvalidInput(f"The data directory {arguments.data} does not exist.")
    path: str | None = arguments.output if action == "create" else None
    if path is None:
        _show(action, _ask(arguments, action, given))
        return 0
    with _private_file(path) as file:  # opened before the key is created: a secret that cannot be written would be lost
        answer = _ask(arguments, action, given)
        file.write(_lines(answer))
    print(f"Key {answer['id']} was written to {path}.")
    return 0


def _ask(arguments: argparse.Namespace, action: str, given: dict[str, Any]) -> dict[str, Any]:
    server = find_if_running(arguments.data)
    if server is None:
        return asyncio.run(_offline(Settings(data=arguments.data, log=arguments.log), action, given))
    return call(server.address, f"/_baton/keys/{action}", given, server.token, server.context)


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


async def _offline(settings: Settings, action: str, given: dict[str, Any]) -> dict[str, Any]:
    node = Node(settings)
    async with node.only_catalog() as catalog:
        if action == "create":
            key_id, secret = make_key(node.world.random_bytes)
            made = await catalog.change(Catalog.put_key, key_id, secret, given["account"])
            return {**show_key(made), "secret": secret}
        if action == "disable":
            return show_key(await catalog.change(Catalog.disable_key, given["id"]))
        keys = sorted(catalog.current().access_keys.values(), key=lambda key: (key.created_ms, key.id))
        return {"keys": [show_key(key) for key in keys]}


def _show(action: str, answer: dict[str, Any]) -> None:
    if action == "create":
        _protect_output()
        print(_lines(answer), end="")
    elif action == "disable":
        print(f"Key {answer['id']} is disabled.")
    else:
        for key in answer["keys"]:
            print(f"{key['id']}  {key['account']}  {key['created']}  {'disabled' if key['disabled'] else 'active'}")


def _lines(answer: dict[str, Any]) -> str:
    return f"AWS_ACCESS_KEY_ID={answer['id']}\nAWS_SECRET_ACCESS_KEY={answer['secret']}\n"


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
