"""Who may join a cluster: real nodes with a wrong secret, clock, release or name exit, and disturb nobody."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batonq.log.jetstream.address import parse
from batonq.log.jetstream.store import JetStreamStore
from tests.cluster.processes import ANSWER_S, LEASE_S, STEADY_LEASE_S, Cluster, NodeProcess, wait_until
from tests.support.nats import NatsServers, nats_servers
from tests.support.ports import reserve_port
from tests.system.process import baton

SECRET = "0123456789abcdef0123456789abcdef\n"
OTHER_SECRET = "fedcba9876543210fedcba9876543210\n"
REFUSED = 5


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServers]:
    with nats_servers(1) as servers:
        yield servers


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("members")


@pytest.fixture(scope="module")
def secret(directory: Path) -> tuple[str, str]:
    path = directory / "secret"
    path.write_text(SECRET)
    return "--cluster-secret-file", str(path)


@pytest.fixture(scope="module")
def log(nats: NatsServers) -> str:
    return f"{nats.address}/members?replicas=1&{nats.monitoring}"


@pytest.fixture(scope="module")
def cluster(directory: Path, log: str, secret: tuple[str, str]) -> Iterator[Cluster]:
    flags = (*secret, "--shards", "2", "--hold-s", "3600")
    with Cluster(directory, log, *flags, nodes=1, lease_s=STEADY_LEASE_S) as cluster:
        wait_until(lambda: all(owner for _, owner, _ in owners(cluster)[1]), "the shards have no owners")
        yield cluster


def get(node: NodeProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{node.url}{path}", timeout=ANSWER_S) as answer:
        return json.loads(answer.read())


def owners(cluster: Cluster) -> tuple[list[str], list[tuple[int, str, int]]]:
    """The nodes; and the shards with their owners and epochs."""
    told = get(cluster.nodes[0], "/v1/cluster")
    shards = [(each["number"], each["owner"], each["epoch"]) for each in told["shards"]]
    return [node["name"] for node in told["nodes"]], shards


@contextmanager
def undisturbed(cluster: Cluster) -> Iterator[None]:
    """Nobody joins, and no shard gets another owner or epoch."""
    before = owners(cluster)
    yield
    assert owners(cluster) == before
    assert cluster.nodes[0].readiness()[0] == 200


# --- the secret -----------------------------------------------------------------------------------


def test_a_node_with_another_secret_exits_and_disturbs_nobody(
    cluster: Cluster, directory: Path, log: str, secret: tuple[str, str]
) -> None:
    other = directory / "other-secret"
    other.write_text(OTHER_SECRET)
    with undisturbed(cluster):
        stranger = NodeProcess(1, directory, log, "--cluster-secret-file", str(other))
        stranger.start()
        code, text = stranger.ended()
        assert code == REFUSED and "is not the secret of this cluster" in text and str(other) in text, text
        without = NodeProcess(2, directory, log)
        without.start()
        code, text = without.ended()
        assert code == REFUSED and "Set --cluster-secret-file" in text, text


def test_the_first_node_after_all_were_down_needs_the_secret_too(
    directory: Path, nats: NatsServers, secret: tuple[str, str]
) -> None:
    """Nobody is there to ask: the tag in the store decides."""
    log = f"{nats.address}/down?replicas=1&{nats.monitoring}"
    first = Cluster(directory / "down", log, *secret, nodes=1)
    with first:
        first.nodes[0].kill()
        other = directory / "other-secret"
        other.write_text(OTHER_SECRET)
        stranger = NodeProcess(1, directory / "down", log, "--cluster-secret-file", str(other))
        stranger.start()
        code, text = stranger.ended()
        assert code == REFUSED and "is not the secret of this cluster" in text, text


# --- the clock and the release --------------------------------------------------------------------


@pytest.mark.parametrize("off_s", [7_200, -7_200])
def test_a_node_with_a_wrong_clock_exits(
    cluster: Cluster, directory: Path, log: str, secret: tuple[str, str], off_s: int
) -> None:
    with undisturbed(cluster):
        late = NodeProcess(1, directory, log, *secret)
        late.alter(f"import time; real = time.time; time.time = lambda: real() + {off_s}")
        late.start()
        code, text = late.ended()
        assert code == 1 and "Set the clock" in text and "(n0)" in text, text
        assert f"2 h {'ahead of' if off_s > 0 else 'behind'}" in text


def test_the_first_nodes_clock_is_compared_with_the_stores(directory: Path, nats: NatsServers) -> None:
    alone = NodeProcess(1, directory / "clock", f"{nats.address}/clock?replicas=1&{nats.monitoring}")
    alone.alter("import time; real = time.time; time.time = lambda: real() + 7200")
    alone.start()
    code, text = alone.ended()
    assert code == 1 and "2 h ahead of the clock of the log's server" in text, text


def test_a_release_that_cannot_read_the_logs_exits(
    cluster: Cluster, directory: Path, log: str, secret: tuple[str, str]
) -> None:
    with undisturbed(cluster):
        old = NodeProcess(1, directory, log, *secret)
        old.alter("import batonq.core.records as records; records.FORMAT_VERSION = 2")
        old.start()
        code, text = old.ended()
        assert code == 1 and "reads up to 2" in text and "Install the release of node n0" in text, text


# --- the name -------------------------------------------------------------------------------------


def test_a_second_node_of_the_same_name_exits_with_the_address_of_the_first(
    cluster: Cluster, directory: Path, log: str, secret: tuple[str, str]
) -> None:
    with undisturbed(cluster):
        second = NodeProcess(1, directory, log, *secret, "--node", "n0")
        second.start()
        code, text = second.ended()
        assert code == 1 and f"running as node n0, at {cluster.nodes[0].url}" in text, text


def test_a_stopped_process_whose_name_was_taken_exits_when_it_continues(
    directory: Path, nats: NatsServers, secret: tuple[str, str]
) -> None:
    """Its announcement had expired before another process took the name."""
    place = directory / "taken"
    log = f"{nats.address}/taken?replicas=1&{nats.monitoring}"
    with Cluster(place, log, *secret, "--shards", "1", nodes=1, lease_s=LEASE_S) as cluster:
        (first,) = cluster.nodes
        first.signal(signal.SIGSTOP)
        second = NodeProcess(1, place, log, *secret, "--node", "n0")
        second.start()
        try:
            cluster.wait_ready(second)
            first.signal(signal.SIGCONT)
            code, text = first.ended()
            assert code == 1 and f"running as node n0, at {second.url}" in text, text
            assert second.running and second.readiness()[0] == 200
        finally:
            second.kill()


# --- members that differ, and owners that cannot be reached ---------------------------------------


def test_a_member_without_the_secret_is_ignored_and_named_in_an_alarm(
    cluster: Cluster, log: str, secret: tuple[str, str]
) -> None:
    note = {"clock_ms": 0, "weights": {}, "draining": False, "format": 99, "proof": "made up"}

    async def announce() -> None:
        store = await JetStreamStore.open(parse(log))
        try:
            leases = store.leases("stranger", "http://127.0.0.9:1", 600)
            leases.incarnate("another process")
            await leases.announce(json.dumps(note))
        finally:
            await store.close()

    asyncio.run(announce())
    shown = baton("cluster", "status", "--url", cluster.nodes[0].url, *secret)  # it reads the list of members again
    assert "n0" in shown.stdout and "stranger" not in shown.stdout
    (alarm,) = [each for each in get(cluster.nodes[0], "/v1/alarms")["alarms"] if each["kind"] == "member-refused"]
    assert owners(cluster)[0] == ["n0"]
    assert "Node stranger at http://127.0.0.9:1 is ignored" in alarm["text"] and "secret" in alarm["text"]


def test_a_node_that_cannot_reach_the_catalogs_owner_is_not_ready(directory: Path, nats: NatsServers) -> None:
    place = directory / "unreachable"
    log = f"{nats.address}/unreachable?replicas=1&{nats.monitoring}"
    nowhere = f"http://127.0.0.1:{reserve_port()}"
    with Cluster(place, log, "--shards", "1", "--advertise", nowhere, nodes=1, lease_s=STEADY_LEASE_S):
        other = NodeProcess(1, place, log, lease_s=STEADY_LEASE_S)
        other.start()
        seen: list[tuple[int, str]] = []

        def told() -> bool:
            seen.append(other.readiness())
            return "Node n0 cannot be reached" in seen[-1][1]

        try:
            wait_until(told, f"it does not say why: {seen[-5:]}")
            assert 200 not in [code for code, _ in seen]
            assert "cannot reach the owner of the catalog" in seen[-1][1] and nowhere not in seen[-1][1]
            wait_until(lambda: any(nowhere in event["text"] for event in other.events), "its log has no address")
        finally:
            other.kill()


# --- catching up ----------------------------------------------------------------------------------

STUCK = """
import asyncio
from batonq.log.intake import Intake

async def read_to(self, stop, feed):
    await asyncio.Event().wait()

Intake.read_to = read_to
"""


def test_a_node_that_catches_up_listens_says_how_far_it_is_and_obeys(
    cluster: Cluster, directory: Path, log: str, secret: tuple[str, str]
) -> None:
    late = NodeProcess(5, directory, log, *secret)
    late.alter(STUCK)
    late.start()
    said: list[str] = []

    def told() -> bool:
        assert late.running, late.events
        code, text = late.readiness()
        assert code in (0, 503)
        said.append(text)
        return "frames are read" in text

    wait_until(told, f"it does not say how far it is: {said[-3:]}")
    assert re.match(r"starting: 0 of \d+ frames are read \(0 %\); reading the catalog", said[-1]), said[-1]
    wait_until(lambda: any(each["event"] == "catching_up" for each in late.events), "it logs nothing")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(late, "/v1/queues")
    assert late.terminate() == 0, late.events
    assert cluster.nodes[0].readiness()[0] == 200


# --- what a cluster expects -----------------------------------------------------------------------


def test_a_dead_node_stays_in_the_status_until_it_is_forgotten(directory: Path, nats: NatsServers) -> None:
    place = directory / "expected"
    log = f"{nats.address}/expected?replicas=1&{nats.monitoring}"
    with Cluster(place, log, "--shards", "1", nodes=2, lease_s=LEASE_S) as cluster:
        first, second = cluster.nodes
        asked = ("cluster", "status", "--url", first.url)
        second.kill()
        wait_until(lambda: first.ask("status")["members"] == ["n0"], "the announcement of n1 does not expire")
        wait_until(lambda: all(each["owner"] for each in first.ask("status")["shards"]), "not all is taken over")
        shown = baton(*asked)
        assert shown.returncode == 6 and "1 of 2 nodes present" in shown.stdout, shown
        assert re.search(r"n1 +is not running: it left [0-9.]+ s ago", shown.stdout), shown

        first.kill()  # a process that starts later has never seen n1
        first.start()
        cluster.wait_ready(first)
        told = json.loads(baton(*asked, "--json").stdout)
        assert told["expected"] == ["n0", "n1"] and told["dead_ms"] == {"n1": None}
        with pytest.raises(AssertionError, match="is running"):
            first.ask("forget", "n0")
        assert baton("cluster", "forget", "n1", "--url", first.url).returncode == 0
        well = baton(*asked)
        assert well.returncode == 0 and "is not running" not in well.stdout, well
