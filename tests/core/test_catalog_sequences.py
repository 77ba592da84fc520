"""The catalog under any sequence of commands."""

from __future__ import annotations

import json
from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batonq.api.sqs.permissions import statement
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.core.catalog.machine import DAY_MS, Catalog, Rules
from batonq.errors import BatonError
from tests.core.catalog_bench import ACCOUNT, OTHER, Bench, redrive_to

NAMES = ("a", "b", "c", "d.fifo", "e.fifo")


class AnySequence(RuleBasedStateMachine):
    """Commands in any order: the invariants hold after each, a refusal changes nothing, and replay agrees."""

    names = st.sampled_from(NAMES)

    @initialize(shards=st.integers(1, 3), wait_ms=st.sampled_from([0, 1000]))
    def start(self, shards: int, wait_ms: int) -> None:
        self.bench = Bench(Rules(name_wait_ms=wait_ms, purge_wait_ms=wait_ms, queues_max=4), shards)
        self.bench.catalog.open_shards(3, self.bench.now, replicas=3)
        self.first = 1
        self.follower = Catalog()
        self.followed = 0

    def attempt(self, command: str, *arguments: object) -> None:
        catalog = self.bench.catalog
        before = catalog.dump(), catalog.frame.row_count
        try:
            getattr(catalog, command)(*arguments, self.bench.now)
        except BatonError:
            assert (catalog.dump(), catalog.frame.row_count) == before

    def number(self, name: str) -> int:
        entry = self.bench.catalog.by_name.get(QueueName(ACCOUNT, name))
        return entry.number if entry else 77

    @rule(name=names, dead=st.none() | names, delay=st.sampled_from(["0", "5", "x"]))
    def create(self, name: str, dead: str | None, delay: str) -> None:
        attributes = {"DelaySeconds": delay}
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead:
            attributes["RedrivePolicy"] = redrive_to(dead)
        self.attempt("create_queue", ACCOUNT, name, attributes, {})

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.attempt("delete_queue", self.number(name))

    @rule(name=names, dead=st.just("") | names, count=st.integers(0, 2))
    def redrive(self, name: str, dead: str, count: int) -> None:
        policy = redrive_to(dead, count) if dead else ""
        self.attempt("set_attributes", self.number(name), {"RedrivePolicy": policy})

    @rule(name=names, permission=st.sampled_from(["allowAll", "denyAll", ""]))
    def allow(self, name: str, permission: str) -> None:
        policy = json.dumps({"redrivePermission": permission}) if permission else ""
        self.attempt("set_attributes", self.number(name), {"RedriveAllowPolicy": policy})

    @rule(name=names, key=st.sampled_from(["x", "y"]), add=st.booleans())
    def tag(self, name: str, key: str, add: bool) -> None:
        self.attempt("set_tags", self.number(name), {key: "v"} if add else {}, [] if add else [key])

    @rule(name=names, add=st.booleans())
    def share(self, name: str, add: bool) -> None:
        made = statement("l", [OTHER], ["SendMessage"], queue_arn(ACCOUNT, name))
        self.attempt("set_permission", self.number(name), "l", made if add else None)

    @rule(name=names)
    def purge(self, name: str) -> None:
        self.attempt("purge_queue", self.number(name))

    @rule(name=names, spread=st.integers(1, 4), own=st.booleans())
    def spread(self, name: str, spread: int, own: bool) -> None:
        changes = {"Baton.Spread": str(spread), "Baton.OwnShards": "true" if own else ""}
        self.attempt("set_attributes", self.number(name), changes)

    @rule(name=names, replicas=st.sampled_from(["", "1", "3", "5"]))
    def change_class(self, name: str, replicas: str) -> None:
        self.attempt("set_attributes", self.number(name), {"Baton.Durability": replicas})

    @rule(name=names, shard=st.integers(0, 5))
    def settle(self, name: str, shard: int) -> None:
        self.attempt("settle_spread", self.number(name), shard)

    @rule(key=st.sampled_from(["k1", "k2"]), command=st.sampled_from(["put_key", "disable_key"]))
    def keys(self, key: str, command: str) -> None:
        self.attempt(command, key, *(["secret", ACCOUNT] if command == "put_key" else []))

    @rule(days=st.integers(0, 20))
    def rotate(self, days: int) -> None:
        self.bench.now += days * DAY_MS
        self.attempt("rotate_receipt_key", bytes(32))

    @rule(ms=st.integers(1, 2000))
    def wait(self, ms: int) -> None:
        self.bench.now += ms

    @precondition(lambda self: self.bench.catalog.version > 1)
    @rule()
    def shorten(self) -> None:
        self.bench.commit()
        first = self.bench.catalog.frame.number
        self.bench.catalog.write_base(first, 1 << 20, self.bench.now)
        self.bench.commit()
        self.first = first

    @rule()
    def commit(self) -> None:
        """A follower folds what was committed since, and stands where the owner does."""
        self.bench.commit()
        for number, rows, variable in self.bench.frames[self.followed :]:
            words = array("Q")
            words.frombytes(rows)
            self.follower.apply_frame(number, words, variable)
        self.followed = len(self.bench.frames)
        assert self.follower.dump() == self.bench.catalog.dump()

    @invariant()
    def holds(self) -> None:
        self.bench.catalog.validate()

    def teardown(self) -> None:
        self.bench.check()
        assert self.bench.replayed(self.first).dump() == self.bench.catalog.dump()


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings()
