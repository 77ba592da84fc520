"""The access keys in a data directory that no server is using: what `baton keys` does there."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec

from batonq.api.rest.key_shapes import Keys
from batonq.api.rest.keys import shown, shown_once
from batonq.core.catalog.machine import Catalog
from batonq.node.catalog.access_keys import create_key, list_keys
from batonq.node.node import Node
from batonq.node.settings import Settings


def change_keys(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    """Create, list, disable or enable keys. Returns what the REST API would answer."""
    return msgspec.to_builtins(asyncio.run(_change(settings, arguments)))  # type: ignore[no-any-return]


async def _change(settings: Settings, arguments: argparse.Namespace) -> msgspec.Struct:
    node = Node(settings)
    async with node.only_catalog() as catalog:
        now_ms = node.clock.now_ms()
        if arguments.action == "list":
            return Keys([shown(key, now_ms) for key in list_keys(catalog.current())])
        if arguments.action != "create":
            disabled = arguments.action == "disable"
            return shown(await catalog.change(Catalog.disable_key, arguments.id, disabled=disabled), now_ms)
        created = await create_key(
            catalog,
            node.world.random_bytes,
            account=arguments.key_account or settings.account,
            own_account=arguments.key_account or settings.account,  # which account is the server's, only a server knows
            name=arguments.name,
            role=arguments.role,
            lasts_ms=0 if arguments.expires is None else round(arguments.expires * 1000),
        )
        return shown_once(created, now_ms)
