"""The nodes of a cluster, as each describes itself: its address, its load, its clock.

Wall clocks are compared with this node's monotonic clock, which no operator sets. So a node whose own clock jumps knows
it at once, and continues with the time that most nodes have. A published time arrives late and is up to a term old, but
never early. So of the last times that a node published, the one that makes its clock latest is nearest to the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from batonq.core.records import FORMAT_VERSION, PLAIN_VERSION
from batonq.errors import BatonError, InvalidInput, NotFound
from batonq.log.interface import Member, OwnershipLeases
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.cluster import balance
from batonq.node.cluster.admission import Credentials

HEARD_MAX = 8  # times of one node that are remembered
GONE_MAX = 64  # nodes that are remembered after they left
GONE_MS = 3_600_000  # and for how long


class Known(NamedTuple):
    """A member, and what it publishes about itself."""

    member: Member
    clocks_ms: tuple[int, ...]  # its clock minus our monotonic clock, at the last times that it was heard
    weights: dict[int, float]
    draining: bool
    format: int  # the newest version of the log format that it reads
    in_trouble: bool = False  # one of its logs makes no progress

    @property
    def clock_ms(self) -> int:
        return max(self.clocks_ms)


class Members:
    """`known` is the state last heard. Notes are published and read once per `term_s`, so they are up to that old."""

    def __init__(
        self,
        node: str,
        *,
        leases: OwnershipLeases,
        alarms: AlarmBook,
        wall_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        term_s: float,
        address: str = "",
        credentials: Credentials | None = None,
        format_in_use: Callable[[], int] = lambda: PLAIN_VERSION,
    ) -> None:
        """`credentials` are None where nodes prove nothing to each other. `format_in_use` is the newest version of the
        log format in the logs.
        """
        self.known: dict[str, Known] = {}
        self.refused: dict[str, str] = {}  # members that are ignored, and why
        self.expected: list[str] = []  # the cluster's nodes, whether they run or not, as last read
        self._node = node
        self._leases = leases
        self._alarms = alarms
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._off_max_ms = balance.CLOCK_OFF_MAX_MS + term_s * 1000
        self._address = address
        self._credentials = credentials
        self._format_in_use = format_in_use
        self._notes: dict[str, str] = {}  # the last note per node
        self._gone: dict[str, int] = {}  # nodes that left without being drained, and when by the monotonic clock
        self._left: dict[str, int] = {}  # nodes that left, drained or not

    async def announce(self, weights: Mapping[int, float], draining: bool, in_trouble: bool = False) -> None:
        """Publish this node's note. Raises NameTaken if another process has this node's name; Unavailable."""
        told = {str(shard): round(weight, 3) for shard, weight in weights.items()}
        note = {
            "clock_ms": self._wall_ms(),
            "weights": told,
            "draining": draining,
            "in_trouble": in_trouble,
            "format": FORMAT_VERSION,
        }
        if self._credentials is not None:
            note["incarnation"] = self._credentials.incarnation
            note["proof"] = self._credentials.prove(self._node, self._address)
        await self._leases.announce(json.dumps(note))

    async def look(self) -> None:
        """Read which nodes are alive now, and which should be. If that fails, the state last heard stays."""
        try:
            await self.hear()
            self.expected = await self._leases.expected()
        except BatonError as problem:
            events.info("members_unknown", f"The list of live nodes cannot be read: {problem.message}")

    async def hear(self) -> None:
        """Read the notes of all nodes. Raises Unavailable."""
        members = await self._leases.members()
        steady_ms = self._steady_ms()
        known: dict[str, Known] = {}
        self._refuse(members)
        for member in members:
            if member.node in self.refused:
                continue
            before = self.known.get(member.node)
            if before is not None and self._notes.get(member.node) == member.note:
                known[member.node] = before._replace(member=member)
                continue
            self._notes[member.node] = member.note
            try:
                told = json.loads(member.note)
                weights = {int(shard): float(weight) for shard, weight in told["weights"].items()}
                heard = (int(told["clock_ms"]) - steady_ms, *(before.clocks_ms if before is not None else ()))
                known[member.node] = Known(
                    member,
                    heard[:HEARD_MAX],
                    weights,
                    bool(told["draining"]),
                    int(told.get("format", PLAIN_VERSION)),  # older releases do not publish it
                    bool(told.get("in_trouble", False)),
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                events.warning("member_unreadable", f"The status that node {member.node} published cannot be read")
        self._note_gone({member.node for member in members}, steady_ms)
        self.known = known

    def _refuse(self, members: Sequence[Member]) -> None:
        """Ignore members that cannot be nodes of this cluster, and report each with an alarm."""
        refused = {member.node: why for member in members if (why := self._refusal(member))}
        for name in self.refused.keys() - refused.keys():
            self._alarms.clear("member-refused", name)
        for member in members:
            if member.node in refused:
                text = f"Node {member.node} at {member.address} is ignored: {refused[member.node]}"
                self._alarms.put("member-refused", text, of=member.node)
        self.refused = refused

    def _refusal(self, member: Member) -> str:
        """Why a member is ignored; empty: it is not."""
        try:
            told = json.loads(member.note)
            proof, incarnation = told.get("proof"), told.get("incarnation")
            format = int(told.get("format", PLAIN_VERSION))
        except (ValueError, TypeError, AttributeError):
            return ""  # reported as unreadable
        credentials = self._credentials
        # Older releases write neither into their notes. In PostgreSQL, `member.incarnation` may be that of a newer one.
        is_older = proof is None and incarnation is None
        if credentials is not None and not is_older and not credentials.accepts(member, str(proof)):
            return "its cluster secret differs, or it belongs to another cluster. Stop it, and correct its settings."
        in_use = self._format_in_use()
        if format < in_use:
            return f"it reads log format {format} and the logs have format {in_use}. Stop it, and upgrade it."
        return ""

    def _note_gone(self, alive: set[str], steady_ms: int) -> None:
        for name, before in self.known.items():
            if name not in alive and not before.draining and len(self._gone) < GONE_MAX:
                self._gone[name] = steady_ms
            if name not in alive and len(self._left) < GONE_MAX:
                self._left[name] = steady_ms
        for name in self._left.keys() & alive:
            del self._left[name]
        for name in [name for name, since_ms in self._gone.items() if name in alive or steady_ms - since_ms > GONE_MS]:
            del self._gone[name]

    def gone_ms(self) -> dict[str, int]:
        """The nodes that left in the last hour without being drained first, and how long ago."""
        steady_ms = self._steady_ms()
        return {name: steady_ms - since_ms for name, since_ms in self._gone.items()}

    def left_ms(self) -> dict[str, int]:
        """The nodes that this node has seen leave, drained or not, and how long ago."""
        steady_ms = self._steady_ms()
        return {name: steady_ms - since_ms for name, since_ms in self._left.items()}

    async def forget(self, name: str) -> None:
        """No longer expect a node, which is not running. Raises InvalidInput if it is; Unavailable."""
        await self.hear()
        if name in self.known:
            raise InvalidInput(f"Node {name} is running. Drain it and stop it first.")
        self.expected = await self._leases.expected()
        if name not in self.expected:
            raise NotFound(f"Node {name!r} does not exist. Nodes: {', '.join(self.expected)}.")
        await self._leases.expect(name, False)
        self.expected.remove(name)
        self._gone.pop(name, None)
        self._left.pop(name, None)

    async def too_old(self, format: int) -> str:
        """The nodes that cannot read this version of the log format, and what to do about it; empty: all can."""
        await self.look()
        old = [f"{name} (up to {known.format})" for name, known in sorted(self.known.items()) if known.format < format]
        if not old:
            return ""
        return (
            f"This needs log format {format}, which these nodes cannot read yet: {', '.join(old)}. Upgrade them first."
        )

    def clock_off_ms(self) -> int:
        """How far this node's clock is from the median of all; 0 when that is little, or too few nodes are known."""
        own_ms = self._wall_ms() - self._steady_ms()
        others = [known.clock_ms - own_ms for name, known in self.known.items() if name != self._node]
        off_ms = balance.clock_off_ms(others) if len(others) > 1 else 0
        return off_ms if abs(off_ms) > self._off_max_ms else 0

    def clock_offsets_ms(self) -> dict[str, int]:
        """How far the other nodes' clocks are ahead of this node's, as far as their notes tell."""
        own_ms = self._wall_ms() - self._steady_ms()
        return {name: known.clock_ms - own_ms for name, known in self.known.items() if name != self._node}

    def time_s(self) -> float:
        """The time of day: this node's own, or that of most nodes when this node's clock is far off."""
        return (self._wall_ms() - self.clock_off_ms()) / 1000

    def clock_is_off(self) -> bool:
        """Whether this node's clock is too far off the others' to give a shard its time."""
        off_ms = self.clock_off_ms()
        if off_ms:
            text = (
                f"This node's clock differs from the other nodes' by {off_ms} ms, so it takes no shards. Set the clock."
            )
            self._alarms.put("clock-off", text)
            return True
        self._alarms.clear("clock-off")
        return False
