"""Kinds of shards: how many replicas the log of each has, and how many shards there shall be of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from batonq.core.catalog.entries import ShardEntry
from batonq.core.catalog.machine import Catalog
from batonq.errors import InvalidInput


def to_open(catalog: Catalog, own: int, count: int, others: Mapping[int, int]) -> list[tuple[int, int]]:
    """Kinds of which shards are missing, each with how many there are to be: `count` of the log's own kind, and others.

    Shards that were made before there were kinds are of the log's own. Raises InvalidInput when the log's own kind is
    not what it was, or is among the others.
    """
    shards = catalog.shards
    _check_own(shards, own)
    if own in others:
        raise InvalidInput(f"The log's address says {own} replicas: --shards says how many such shards there are.")
    untold = len(catalog.shards_of(0))
    missing = []
    for replicas, wanted in {own: count, **others}.items():
        have = len(catalog.shards_of(replicas)) + (untold if replicas == own else 0)
        if have < wanted or (untold and replicas == own):
            missing.append((replicas, max(have, wanted)))
    return missing


def _check_own(shards: Mapping[int, ShardEntry], own: int) -> None:
    first = shards[min(shards)].replicas if shards else 0
    if first and first != own:
        raise InvalidInput(
            f"The shards here were made with {first} replicas each, and the log's address says {own}. Say "
            f"replicas={first} there. For queues with {own}, open more shards (--other-shards {own}:2) and name the "
            "class with Baton.Durability."
        )
