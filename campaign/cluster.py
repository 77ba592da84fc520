"""Three NATS servers and three nodes on this machine, each on its own address, with a proxy on every link."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from batonq.client.aio.http import HttpTransport
from batonq.errors import BatonError
from batonq.log.jetstream.address import NatsAddress
from campaign.launcher import CLOCK
from campaign.proxy import Door

NODES = SERVERS = 3
SHARDS = 4
NAME = "campaign"
PROXY = "127.0.0.30"
START_S = 90.0
THRESHOLD_BYTES = 6_000  # larger bodies are put into the payload store; usual ones are smaller
CONTENT_TYPE = ("content-type", "application/msgpack")
NATS = """server_name: {name}
listen: {host}:{port}
http: {host}:{monitor}
max_payload: 8388608
max_pending: 268435456
jetstream {{ store_dir: "{store}", max_file_store: 20G, sync_interval: always }}
cluster {{
  name: campaign, listen: {host}:{route}
  pool_size: -1  # one route a pair; a pool would be filled by way of what is advertised
  # Nobody is told of another way to a server than the one through its own doors of the proxy.
  advertise: "{nowhere}", no_advertise: true
  routes: [{routes}]
}}
"""


class Broken(Exception):
    """The cluster did not reach a state that a fault or a round needs."""


def free_port(host: str) -> int:
    with socket.socket() as taken:
        taken.bind((host, 0))
        return int(taken.getsockname()[1])


class Program:
    """A process of the cluster, which can be killed and restarted."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self._command = command
        self._output = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.stopped = False  # by SIGSTOP

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.stopped = False


class Server(Program):
    """A NATS server."""

    def __init__(self, number: int, directory: Path) -> None:
        self.host = f"127.0.0.{11 + number}"
        self.port, self.monitor, self.route = (free_port(self.host) for _ in range(3))
        self._configuration = directory / f"s{number}.conf"
        binary = str(Path(sys.executable).parent / "nats-server")
        super().__init__(f"s{number}", [binary, "-c", str(self._configuration)], directory)

    def configure(self, routes: list[str], nowhere: str) -> None:
        self._configuration.write_text(
            NATS.format(
                name=self.name,
                host=self.host,
                port=self.port,
                monitor=self.monitor,
                route=self.route,
                store=self._configuration.with_suffix(""),
                nowhere=nowhere,
                routes=", ".join(f"nats-route://{route}" for route in routes),
            )
        )

    async def ready(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.monitor)
        except OSError:
            return False
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


class BatonNode(Program):
    def __init__(self, number: int, directory: Path) -> None:
        self.host = f"127.0.0.{2 + number}"  # different from the default source address of connections
        self.port = free_port(self.host)
        self.url = f"http://{self.host}:{self.port}"
        self.data = directory / f"n{number}"
        self._clock = directory / f"n{number}.clock"
        self.move_clock(0.0)
        self._transport: HttpTransport | None = None
        super().__init__(f"n{number}", [], directory)

    def configure(self, advertised: str, log: str, bug: str, flags: list[str]) -> None:
        self._command = [
            *(sys.executable, "-m", "campaign.launcher", "--address", self.host, "--clock", str(self._clock)),
            *(("--bug", bug) if bug else ()),
            *("--", "serve", "--host", self.host, "--port", str(self.port), "--data", str(self.data)),
            *("--log-url", log, "--node", self.name, "--advertise", advertised, "--log-format", "json", *flags),
        ]

    def move_clock(self, ahead_s: float) -> None:
        if self._clock.exists():  # it is memory-mapped: the same bytes have to change
            with self._clock.open("r+b") as file:
                file.write(CLOCK.pack(ahead_s))
        else:
            self._clock.write_bytes(CLOCK.pack(ahead_s))

    @property
    def transport(self) -> HttpTransport:
        if self._transport is None:
            self._transport = HttpTransport(self.url, connections=256, polls=64)
        return self._transport

    async def ask(self, what: str, body: Any = None, timeout_s: float = 10.0) -> Any:
        """A request as from another node."""
        answer = await self.transport.request(
            "POST", f"/internal/node/{what}", msgspec.msgpack.encode(body), [CONTENT_TYPE], timeout_s
        )
        if answer.status != 200:
            raise Broken(f"{self.name}: {what} returned {answer.status}: {answer.body[:200]!r}")
        return msgspec.msgpack.decode(answer.body)

    async def ready(self) -> bool:
        try:
            return (await self.transport.request("GET", "/readyz", b"", [], 5.0)).status == 200
        except BatonError:
            return False


class Cluster:
    """`async with Cluster(directory) as cluster`."""

    def __init__(self, directory: Path, *, lease_s: float = 5.0, bug: str = "", hold_s: float = 10.0) -> None:
        self.directory = directory
        self.nodes = [BatonNode(number, directory) for number in range(NODES)]
        self.servers = [Server(number, directory) for number in range(SERVERS)]
        self.payloads = directory / "payloads"  # the payload store of all nodes
        self.lease_s = lease_s
        self._bug = bug
        self._hold_s = hold_s
        self._proxy: asyncio.subprocess.Process

    @property
    def log_address(self) -> NatsAddress:
        """The log's URL for the campaign itself, without the proxy."""
        return NatsAddress(tuple(f"{server.host}:{server.port}" for server in self.servers), NAME, unsafe=True)

    async def __aenter__(self) -> Cluster:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.transport.close()
        for program in (*self.nodes, *self.servers):
            program.kill()
        if hasattr(self, "_proxy"):
            with suppress(ProcessLookupError):  # it may have exited by itself, with a reason
                self._proxy.kill()
            await self._proxy.wait()

    async def _start(self) -> None:
        doors = [Door(server.name, PROXY, server.host, server.port) for server in self.servers]
        doors += [Door(node.name, PROXY, node.host, node.port) for node in self.nodes]
        doors.append(Door("nowhere", PROXY, PROXY, 0, "anybody"))
        pairs = [(one, other) for one in self.servers for other in self.servers if one is not other]
        doors += [Door(other.name, PROXY, other.host, other.route, one.name) for one, other in pairs]
        ports = await self._start_proxy(doors)
        at = SERVERS + NODES
        routes = dict(zip(pairs, ports[at + 1 :], strict=True))
        for server in self.servers:
            mine = [f"{PROXY}:{port}" for (one, _), port in routes.items() if one is server]
            server.configure(mine, f"{PROXY}:{ports[at]}")
            server.start()
        for server in self.servers:
            await until(server.ready, f"{server.name} is not ready")
        there = ",".join(f"{PROXY}:{port}" for port in ports[:SERVERS])
        looked_at = "&".join(f"monitor=http://{server.host}:{server.monitor}" for server in self.servers)
        log = f"nats://{there}/{NAME}?replicas={SERVERS}&{looked_at}"
        flags = ["--shards", str(SHARDS), "--lease-s", f"{self.lease_s:g}", "--hold-s", f"{self._hold_s:g}"]
        flags += ["--payload-store", f"file://{self.payloads}", "--payload-threshold", str(THRESHOLD_BYTES)]
        for node, port in zip(self.nodes, ports[SERVERS:at], strict=True):
            node.configure(f"http://{PROXY}:{port}", log, self._bug, flags)
            node.start()
        await self.wait_ready()

    async def _start_proxy(self, doors: list[Door]) -> list[int]:
        self._proxy = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "campaign.proxy"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        names = {node.host: node.name for node in self.nodes}
        told = await self._tell_proxy({"doors": doors, "names": names})
        return [int(port) for port in told["ports"]]

    async def _tell_proxy(self, what: dict[str, Any]) -> Any:
        assert self._proxy.stdin is not None and self._proxy.stdout is not None
        self._proxy.stdin.write(json.dumps(what).encode() + b"\n")
        await self._proxy.stdin.drain()
        return json.loads(await self._proxy.stdout.readline())

    # --- looking at it --------------------------------------------------------------------------

    def running(self) -> list[BatonNode]:
        return [node for node in self.nodes if node.running and not node.stopped]

    async def status(self) -> dict[str, Any]:
        """The status from the first node that answers."""
        for node in self.running():
            try:
                found: dict[str, Any] = await node.ask("status")
                return found
            except (BatonError, Broken):
                continue
        raise Broken("no node answers")

    async def owners(self) -> dict[int | str, BatonNode]:
        """The owners, by shard or `catalog`."""
        names = {node.name: node for node in self.nodes}
        return {each["shard"]: names[each["owner"]] for each in (await self.status())["shards"] if each["owner"]}

    async def wait_ready(self) -> float:
        """Wait until every node serves, and every shard has an owner. Returns how long it took."""

        async def ready() -> bool:
            for node in self.nodes:
                if not node.running:
                    raise Broken(f"{node.name} has exited; see its log in {self.directory}")
                if not await node.ready():
                    return False
            try:
                return len(await self.owners()) == SHARDS + 1
            except Broken:
                return False

        return await until(ready, "the cluster is not ready")

    def leader(self, shard: int) -> Server:
        """The NATS server that leads the stream of a shard. Raises Broken while there is none."""
        stream = f"baton-{NAME}-shard-{shard:04}"
        for server in self.servers:
            if not server.running:
                continue
            with urlopen(f"http://{server.host}:{server.monitor}/jsz?streams=true&accounts=true", timeout=5) as answer:
                told = json.loads(answer.read())
            for account in told.get("account_details", ()):
                for detail in account.get("stream_detail", ()):
                    leader = detail.get("cluster", {}).get("leader", "")
                    if detail["name"] == stream and leader:
                        return next(each for each in self.servers if each.name == leader)
        raise Broken(f"stream {stream} has no leader")

    # --- links ----------------------------------------------------------------------------------

    async def cut(self, pairs: list[tuple[str, str]]) -> None:
        """Block all traffic from the first to the second of each pair."""
        await self._tell_proxy({"cut": pairs})

    async def heal(self) -> None:
        await self._tell_proxy({"heal": True})


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = START_S) -> float:
    """Returns how long it took."""
    began_s = time.monotonic()
    while not await condition():
        if time.monotonic() - began_s > seconds:
            raise Broken(f"{what} within {seconds:g} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s
