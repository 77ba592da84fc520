"""Replays the logs of a backup, and checks that they fit together: nothing lost and nothing doubled between shards."""

from __future__ import annotations

from typing import NamedTuple

from batonq.core.catalog.machine import Catalog
from batonq.core.records import Reason
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.channel_end import Incoming
from batonq.errors import LogCorrupt
from batonq.log.backup_files import BackupLog
from batonq.log.frames import Frame
from batonq.log.layout import CATALOG_SHARD
from batonq.node.shard_host.recovery import LogReplay


class RestoredState(NamedTuple):
    """What a server finds that starts with the restored data."""

    queues: int
    messages: int
    in_flight: int
    keys: int
    shards: int
    last_time_ms: int  # the newest time in the logs


class _ShardFacts(NamedTuple):
    messages: int
    in_flight: int
    last_time_ms: int
    policies: dict[int, int]  # open queue → version of its policy
    owed: dict[int, tuple[int, int, list[int]]]  # destination shard → settled up to, newest entry, unsettled entries
    arrived: dict[int, Incoming]  # source shard → the entries from it


class StateCheck:
    """Give it every frame of every log, the logs one after another, and then ask for the `result`."""

    def __init__(self) -> None:
        self._replay: LogReplay | None = None
        self._log: BackupLog | None = None
        self._facts: dict[int, _ShardFacts] = {}
        self._catalog: Catalog | None = None

    def __call__(self, log: BackupLog, frame: Frame) -> None:
        if log is not self._log:
            self._finish()
            self._log = log
            machine = Catalog() if log.shard == CATALOG_SHARD else Shard(log.shard)
            self._replay = LogReplay(machine)
        assert self._replay is not None
        self._replay(frame)

    def _finish(self) -> None:
        """Keep only the facts of a replayed log: the messages of one shard at a time are in memory."""
        if self._replay is None or self._log is None:
            return
        machine = self._replay.machine
        if machine.before_base:
            raise LogCorrupt(f"The beginning of {self._log.title} is missing, and no Base record replaces it.")
        machine.validate()
        if isinstance(machine, Catalog):
            self._catalog = machine
        else:
            counters = [machine.counters(queue) for queue in machine.queues]
            self._facts[machine.number] = _ShardFacts(
                sum(state.messages for state in machine.queues.values()),
                sum(counter.in_flight for counter in counters),
                machine.last_time_ms,
                {number: state.policy.version for number, state in machine.queues.items() if not state.closed},
                machine.outgoing(),
                dict(machine.incoming),
            )
        self._replay = None

    def result(self) -> RestoredState:
        """Raises LogCorrupt if the logs do not fit together."""
        self._finish()
        catalog = self._catalog
        if catalog is None:
            raise LogCorrupt("The backup has no catalog.")
        missing = catalog.shards.keys() - self._facts.keys()
        if missing:
            raise LogCorrupt(f"The backup lacks shard {min(missing)}.")
        for shard, facts in self._facts.items():
            newest = max(facts.policies.values(), default=0)
            if newest > catalog.version:
                raise LogCorrupt(f"Shard {shard} knows version {newest} of the catalog, which has {catalog.version}.")
            self._check_channels(shard, facts)
        return RestoredState(
            queues=len(catalog.queues),
            messages=sum(facts.messages for facts in self._facts.values()) - self._in_both(),
            in_flight=sum(facts.in_flight for facts in self._facts.values()),
            keys=len(catalog.access_keys),
            shards=len(self._facts),
            last_time_ms=max((facts.last_time_ms for facts in self._facts.values()), default=catalog.last_time_ms),
        )

    def _in_both(self) -> int:
        """Messages that have arrived and are not settled yet: until then their source has them too, as OWED."""
        return sum(
            arrived.verdict(number) == Reason.ACCEPTED
            for source, facts in self._facts.items()
            for destination, (_, _, unsettled) in facts.owed.items()
            if destination in self._facts and (arrived := self._facts[destination].arrived.get(source)) is not None
            for number in unsettled
        )

    def _check_channels(self, source: int, facts: _ShardFacts) -> None:
        for destination, (settled, last, _) in facts.owed.items():
            if destination == source or destination not in self._facts:
                continue
            arrived = self._cursor(source, destination)
            if settled > arrived:
                raise LogCorrupt(
                    f"Messages were lost between shard {source} and shard {destination}: entries up to {settled} are "
                    f"settled, but only {arrived} have arrived."
                )
            if arrived > last:
                raise LogCorrupt(
                    f"Messages were doubled between shard {source} and shard {destination}: entries up to {arrived} "
                    f"have arrived, but only {last} are owed."
                )
        for origin in facts.arrived:
            if origin in self._facts and origin != source and source not in self._facts[origin].owed:
                raise LogCorrupt(
                    f"Messages were doubled between shard {origin} and shard {source}: entries have arrived that were "
                    "never owed."
                )

    def _cursor(self, source: int, destination: int) -> int:
        """The newest entry of a channel that has arrived."""
        found = self._facts[destination].arrived.get(source)
        return 0 if found is None else found.cursor
