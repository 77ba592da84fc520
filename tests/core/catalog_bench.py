"""A catalog over a log that is kept in a list, for the tests of the catalog."""

from __future__ import annotations

import json
from array import array

from batonq.attribute_formats.arns import queue_arn
from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.machine import Catalog, Rules

ACCOUNT = "000000000000"
OTHER = "111111111111"
T0 = 1_000_000


def redrive_to(name: str, count: int = 3, account: str = ACCOUNT) -> str:
    return json.dumps({"deadLetterTargetArn": queue_arn(account, name), "maxReceiveCount": count})


class Bench:
    """Commands go to `catalog`; `commit` seals what they wrote, `check` compares the state with its replay."""

    def __init__(self, rules: Rules | None = None, shards: int = 1) -> None:
        self.frames: list[tuple[int, bytes, bytes]] = []
        self.catalog = Catalog(rules)
        self.catalog.take_ownership(1, T0)
        self.catalog.open_shards(shards, T0)
        self.now = T0

    def create(self, name: str, account: str = ACCOUNT, **attributes: str) -> QueueEntry:
        named = {key.replace("_", "."): value for key, value in attributes.items()}
        return self.catalog.create_queue(account, name, named, {}, self.now)

    def commit(self) -> None:
        catalog = self.catalog
        while catalog.frame.finished:
            self.frames.append(catalog.frame.take_finished())
        if catalog.frame.row_count:
            number = catalog.frame.number
            self.frames.append((number, *catalog.seal()))
            catalog.begin_frame(number + 1)

    def replayed(self, first: int = 1) -> Catalog:
        self.commit()
        copy = Catalog()
        for number, rows, variable in self.frames:
            if number >= first:
                words = array("Q")
                words.frombytes(rows)
                copy.apply_frame(number, words, variable)
        return copy

    def check(self) -> None:
        self.catalog.validate()
        copy = self.replayed()
        copy.validate()
        assert copy.dump() == self.catalog.dump()
        assert copy.frame.number == self.catalog.frame.number
