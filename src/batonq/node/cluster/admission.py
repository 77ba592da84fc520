"""Checks a node before it joins its cluster, before it announces itself or takes a lease.

The node proves that it has the cluster's secret: to the members that run, and by a tag in the lease store. The first
node stores the tag, and every later one compares its own with it. The node also compares its cluster and the log
format with the members', and its clock with the members' and the store's. Whatever differs ends the start with an error
that says what to change. A clock differs if it is behind most of the others, or ahead of most of them.

The node's name belongs to one process at a time, its *incarnation*. A process that finds its name in use exits. If the
earlier process with that name no longer answers, the new one takes the name over: at once at the same address, because
this process listens there, and after the earlier announcement has expired at any other address.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Sequence
from hashlib import blake2b
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from batonq.core.records import FORMAT_VERSION
from batonq.errors import AccessDenied, BatonError, InvalidInput, NotFound, Unavailable
from batonq.log.backend import NameTaken
from batonq.log.interface import Member, OwnershipLeases
from batonq.node import events
from batonq.node.clock import duration
from batonq.node.cluster.peers import PREFIX, Asking
from batonq.node.cluster.signing import split_secrets
from batonq.node.settings import Settings

T = TypeVar("T")
HELLO = "hello"  # the question about a node: who it is, and what it expects of others
HELLO_S = 5.0
STORE_S = 60.0  # how long a lease store that does not answer is retried
AGAIN_S = 0.2
CLOCK_OFF_MAX_MS = 10_000  # of a node that joins
SECRET = "secret"  # the name of the tag in the lease store
NO_SECRET = "none"
STORE = "the clock of the log's server"


class Hello(msgspec.Struct):
    """How a node introduces itself."""

    node: str
    incarnation: str
    cluster: int
    format: int  # the newest version of the log format in its logs
    time_ms: int  # the time of day of the cluster, as far as it knows


_hello = msgspec.msgpack.Decoder(Hello)


class Credentials:
    """What a process proves with the cluster's secrets. `secret` is the text of the secret file."""

    def __init__(self, secret: bytes, cluster: int, incarnation: str) -> None:
        self.cluster = cluster
        self.incarnation = incarnation
        self._secrets = split_secrets(secret)

    def tags(self) -> list[str]:
        """What is stored of each secret: enough to compare with, and not enough to sign with."""
        return [_proof(secret, f"secret\n{self.cluster:x}") for secret in self._secrets] or [NO_SECRET]

    def prove(self, node: str, address: str) -> str:
        """The proof that a process with the secret announces this node."""
        return self._proofs(node, address, self.incarnation)[0]

    def accepts(self, member: Member, proof: str) -> bool:
        expected = self._proofs(member.node, member.address, member.incarnation)
        return any(hmac.compare_digest(proof.encode(), each.encode()) for each in expected)

    def _proofs(self, node: str, address: str, incarnation: str) -> list[str]:
        text = f"member\n{self.cluster:x}\n{node}\n{address}\n{incarnation}"
        return [_proof(secret, text) for secret in self._secrets] or [f"{NO_SECRET} {self.cluster:x}"]


def _proof(secret: bytes, text: str) -> str:
    key = blake2b(secret, person=b"baton-cluster").digest()
    return blake2b(text.encode(), key=key, digest_size=32).hexdigest()


class _Answers(NamedTuple):
    """What the members answered, by name, without what this process answered itself. `older` run an earlier release and
    say nothing about themselves.
    """

    hellos: dict[str, Hello]
    offsets_ms: dict[str, float]  # how far their clocks are ahead of ours, at least
    denied: dict[str, str]
    older: list[str]


class Admission:
    """`clock_off_max_ms` is how far this node's clock may be off; 0: any clock is accepted, and a node with a wrong one
    takes no shards.
    """

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials,
        *,
        leases: OwnershipLeases,
        peers: Asking,
        wall_ms: Callable[[], int],
        clock_off_max_ms: int,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._leases = leases
        self._peers = peers
        self._wall_ms = wall_ms
        self._clock_off_max_ms = clock_off_max_ms
        self._loop = asyncio.get_running_loop()

    async def enter(self, announce: Callable[[], Awaitable[None]]) -> None:
        """Prove that this node belongs to the cluster, and announce it. Raises InvalidInput, AccessDenied or NameTaken,
        which say what to change; Unavailable.
        """
        members = await self._patiently(self._leases.members)
        answers = await self._ask_all(members)
        await self._check_secret(members, answers)
        self._check_cluster(members, answers)
        self._check_format(answers)
        await self._check_clock(answers)
        replaced = await self._find_name(members, answers)
        self._leases.incarnate(self._credentials.incarnation, replaced)
        await self._patiently(announce)
        await self._patiently(lambda: self._leases.expect(self._settings.node, True))

    async def _ask_all(self, members: Sequence[Member]) -> _Answers:
        answers = _Answers({}, {}, {}, [])
        await asyncio.gather(*(self._ask(member, answers) for member in members))
        return answers

    async def _ask(self, member: Member, answers: _Answers) -> None:
        began_ms = self._wall_ms()
        try:
            async with asyncio.timeout(HELLO_S):
                path = f"{PREFIX}node/{HELLO}"
                hello = _hello.decode(await self._peers.ask(member.address, path, "", b"", HELLO_S))
        except AccessDenied as problem:
            answers.denied[member.node] = problem.message
        except NotFound:
            answers.older.append(member.node)
        except (BatonError, TimeoutError, msgspec.DecodeError) as problem:
            events.info("member_silent", f"Node {member.node} at {member.address} does not answer: {problem}")
        else:
            if hello.incarnation == self._credentials.incarnation:
                return  # an earlier process announced the address at which this one listens
            answers.hellos[member.node] = hello
            ended_ms = self._wall_ms()
            ahead_ms = hello.time_ms - (began_ms + ended_ms) / 2
            unsure_ms = abs(ended_ms - began_ms) / 2
            sign = 1 if ahead_ms > 0 else -1
            answers.offsets_ms[member.node] = sign * max(0.0, abs(ahead_ms) - unsure_ms)

    # --- the checks ---------------------------------------------------------------------------------

    async def _check_secret(self, members: Sequence[Member], answers: _Answers) -> None:
        if answers.denied and not answers.hellos and not answers.older:
            raise self._wrong_secret(f"Node {min(answers.denied)} refuses this node's requests.")
        first, *others = self._credentials.tags()
        replaces = [*others]
        if not answers.hellos and not answers.older:
            replaces.append(NO_SECRET)  # a stopped cluster may be given a secret
        stored = await self._patiently(lambda: self._leases.agree(SECRET, first, replaces))
        if stored == first:
            return
        if stored == NO_SECRET:
            raise InvalidInput(
                "The running nodes of this cluster have no secret. Stop all nodes before you set --cluster-secret-file."
            )
        raise self._wrong_secret("It differs from the secret with which the cluster was started.")

    def _wrong_secret(self, why: str) -> AccessDenied:
        file = self._settings.cluster_secret_file
        if not file:
            return AccessDenied(
                "This cluster has a secret, and this node has none. Set --cluster-secret-file to the file that the "
                "other nodes use."
            )
        return AccessDenied(
            f"The cluster secret in {file} is not the secret of this cluster. {why} Copy the file from a running node."
        )

    def _check_cluster(self, members: Sequence[Member], answers: _Answers) -> None:
        addresses = {member.node: member.address for member in members}
        for name, hello in answers.hellos.items():
            if hello.cluster != self._credentials.cluster:
                raise InvalidInput(
                    f"Node {name} is at {addresses[name]} according to the log, but a node of another cluster answers "
                    "there. Check the cluster's name in --log-url, and --advertise of both nodes."
                )

    @staticmethod
    def _check_format(answers: _Answers) -> None:
        newer = {name: hello.format for name, hello in answers.hellos.items() if hello.format > FORMAT_VERSION}
        if newer:
            raise InvalidInput(
                f"The logs of this cluster have format {max(newer.values())}, and this release reads up to "
                f"{FORMAT_VERSION}. Install the release of node {min(newer)}, or a newer one."
            )

    async def _check_clock(self, answers: _Answers) -> None:
        if not self._clock_off_max_ms:
            return
        votes = dict(answers.offsets_ms)
        began_ms = self._wall_ms()
        if store_ms := await self._patiently(self._leases.store_time_ms):
            # The store's time is from some moment between the two times of this node.
            votes[STORE] = max(store_ms - self._wall_ms(), 0) or min(store_ms - began_ms, 0)
        for sign, where in ((1, "behind"), (-1, "ahead of")):
            differing = {whose: sign * ahead_ms for whose, ahead_ms in votes.items()}
            differing = {whose: off_ms for whose, off_ms in differing.items() if off_ms > self._clock_off_max_ms}
            if 2 * len(differing) > len(votes):
                off = duration(int(median(differing.values())))
                raise InvalidInput(
                    f"This node's clock is {off} {where} {_clocks(differing)}. Set the clock, run NTP or chrony on "
                    "every machine, and start the node again."
                )

    # --- the name -----------------------------------------------------------------------------------

    async def _find_name(self, members: Sequence[Member], answers: _Answers) -> str:
        """The incarnation that this process replaces; empty: none. Raises NameTaken."""
        name, mine = self._settings.node, self._credentials.incarnation
        earlier = _find(members, name)
        if earlier is None or earlier.incarnation == mine:
            return ""
        hello = answers.hellos.get(name)
        if hello is not None and hello.node == name:
            raise NameTaken(name, earlier.address)
        if earlier.address == self._settings.advertise:
            return earlier.incarnation
        events.info(
            "waiting",
            f"Another process was running as node {name} at {earlier.address}; waiting until its announcement expires",
        )
        while True:
            await asyncio.sleep(AGAIN_S)
            later = _find(await self._patiently(self._leases.members), name)
            if later is None:
                return ""
            if later != earlier:
                raise NameTaken(name, later.address)

    async def _patiently(self, question: Callable[[], Awaitable[T]]) -> T:
        """Ask the lease store, and retry for a while if it does not answer."""
        deadline_s = self._loop.time() + STORE_S
        while True:
            try:
                return await question()
            except Unavailable:
                if self._loop.time() > deadline_s:
                    raise
            await asyncio.sleep(AGAIN_S)


def _clocks(whose: Collection[str]) -> str:
    nodes = ", ".join(sorted(set(whose) - {STORE}))
    named = [f"the clocks of the running nodes ({nodes})"] if nodes else []
    return " and ".join([*named, STORE] if STORE in whose else named)


def _find(members: Sequence[Member], name: str) -> Member | None:
    return next((member for member in members if member.node == name), None)
