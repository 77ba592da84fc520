"""`baton keys create`, `list`, `disable`: the access keys of the secured profile.

Works on a running server, through its own endpoint and the token in the data directory, or on a data directory that no
server holds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from batonq.cli.actions import add_action
from batonq.cli.admin import call
from batonq.cli.server import find_if_running
from batonq.core.catalog.machine import Catalog
from batonq.errors import InvalidInput
from batonq.node.node import Node
from batonq.node.pages import make_key, show_key
from batonq.node.settings import LOG_VARIABLE, Settings

DEFAULTS = Settings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    create = add_action(actions, "create", "make a key; its secret is shown this once")
    create.add_argument("--account", default=DEFAULTS.account, help=f"whose key (default {DEFAULTS.account})")
    listing = add_action(actions, "list", "show the keys, without their secrets")
    disable = add_action(actions, "disable", "stop a key from signing anything")
    disable.add_argument("id", help="the key's id")
    for action in (create, listing, disable):
        action.add_argument("--data", default=DEFAULTS.data, help=f"data directory (default {DEFAULTS.data})")
        action.add_argument(
            "--log",
            default=os.environ.get(LOG_VARIABLE, ""),
            help="where the logs are, if not in the data directory: nats://… or postgres://… (default $BATON_LOG)",
        )


def run(arguments: argparse.Namespace) -> int:
    action: str = arguments.action
    given: dict[str, Any] = {}
    if action == "create":
        given["account"] = arguments.account
    elif action == "disable":
        given["id"] = arguments.id
    if action != "create" and not os.path.isdir(arguments.data):
        raise InvalidInput(f"There is no data directory {arguments.data}.")
    server = find_if_running(arguments.data)
    if server is None:
        answer = asyncio.run(_offline(Settings(data=arguments.data, log=arguments.log), action, given))
    else:
        answer = call(server.address, f"/_baton/keys/{action}", given, server.token, server.context)
    _show(action, answer)
    return 0


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
        print(f"AWS_ACCESS_KEY_ID={answer['id']}")
        print(f"AWS_SECRET_ACCESS_KEY={answer['secret']}")
    elif action == "disable":
        print(f"{answer['id']} is disabled.")
    else:
        for key in answer["keys"]:
            print(f"{key['id']}  {key['account']}  {key['created']}  {'disabled' if key['disabled'] else 'active'}")
