"""Kinds of shards: the number of replicas of each shard's log, and the number of shards wanted per kind."""

from __future__ import annotations

from collections.abc import Mapping

from batonq.core.catalog.machine import Catalog
from batonq.errors import InvalidInput


def to_open(catalog: Catalog, count: int, others: Mapping[int, int]) -> list[tuple[int, int]]:
    """The kinds that lack shards, each with its wanted number: `count` of the log's own kind, and `others`.

    Raises InvalidInput when the log's own kind is among the others.
    """
    own = catalog.own_replicas
    if own in others:
        raise InvalidInput(
            f"--other-shards names shards with {own} replicas, which is what the log's URL specifies. Set their "
            "number with --shards."
        )
    wanted = {own: count, **others}
    return [(replicas, number) for replicas, number in wanted.items() if len(catalog.shards_of(replicas)) < number]
