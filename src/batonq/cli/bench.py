"""`baton bench`: a quick load on a server. It uses a queue of its own, which it deletes at the end."""

from __future__ import annotations

import argparse
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from batonq.cli.connection import Server, Target, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import duration, note, number, print_fields, print_json
from batonq.cli.progress import Progress
from batonq.cli.quantities import parse_bytes, parse_duration_s
from batonq.errors import BatonError

PREFIX = "baton-bench-"
WAIT_S = 1
THREADS_MAX = 64
BATCH_MAX = 1_000
BODY_BYTES_MIN = 64
REQUEST_BYTES_MAX = 3 << 20
VISIBILITY_S = 300
LOOK_EVERY_S = 0.1


@dataclass
class Measured:
    """What the threads of one run measured. Times are in seconds."""

    sends_s: list[float] = field(default_factory=list)  # per request
    receives_s: list[float] = field(default_factory=list)
    acks_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)  # per message: from send to receive
    sent: int = 0
    acked: int = 0
    first_send: float = 0.0
    last_send: float = 0.0
    last_ack: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=10_000, metavar="N", help="number of messages (default 10000)")
    parser.add_argument(
        "--size", type=parse_bytes, default=1_000, metavar="BYTES", help="size of a body, a JSON object (default 1000)"
    )
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="messages per request (default 100)")
    parser.add_argument("--senders", type=int, default=2, metavar="N", help="threads that send (default 2)")
    parser.add_argument(
        "--receivers", type=int, default=2, metavar="N", help="threads that receive; 0: only send (default 2)"
    )
    parser.add_argument("--fifo", action="store_true", help="use a FIFO queue with 100 message groups")
    parser.add_argument(
        "--timeout", type=parse_duration_s, default=300.0, metavar="TIME", help="stop after this time (default 5m)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    server = connect(arguments)
    name = PREFIX + secrets.token_hex(6) + (".fifo" if arguments.fifo else "")
    spec = {"name": name, "mode": "FIFO" if arguments.fifo else "STANDARD"}
    server.post("/v1/queues", {**spec, "defaultVisibilityTimeoutSeconds": VISIBILITY_S})
    try:
        measured = _Run(arguments, server.target, name).run()
    finally:
        _clean_up(server, name)
    result = report(arguments, measured)
    if arguments.json:
        print_json(result)
    else:
        _print(server.url, result)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    limits = {
        "messages": (1, 10_000_000),
        "batch": (1, BATCH_MAX),
        "senders": (1, THREADS_MAX),
        "receivers": (0, THREADS_MAX),
        "size": (BODY_BYTES_MIN, 1 << 20),
    }
    for flag, (low, high) in limits.items():
        if not low <= getattr(arguments, flag) <= high:
            raise WrongUsage(f"--{flag} must be from {low:,} to {high:,}, not {getattr(arguments, flag):,}.")
    if arguments.batch * arguments.size > REQUEST_BYTES_MAX:
        raise WrongUsage(
            f"--batch {arguments.batch} times --size {arguments.size:,} is too large for a request. Reduce one."
        )


def _clean_up(server: Server, name: str) -> None:
    try:
        server.call("DELETE", queue_path(name))
    except BatonError as problem:
        note(f"baton: the queue {name} could not be deleted: {problem.message}")


class _Run:
    """One run: senders and receivers at the same time, each a thread with a connection of its own."""

    def __init__(self, arguments: argparse.Namespace, target: Target, name: str) -> None:
        self._arguments = arguments
        self._target = target
        self._name = name
        self._lock = threading.Lock()
        self._left = arguments.messages
        self._stop = threading.Event()
        self._problems: list[BatonError] = []
        self.measured = Measured()

    def run(self) -> Measured:
        arguments = self._arguments
        self.measured.first_send = time.perf_counter()
        threads = [threading.Thread(target=self._guarded, args=(self._send,)) for _ in range(arguments.senders)]
        threads += [threading.Thread(target=self._guarded, args=(self._receive,)) for _ in range(arguments.receivers)]
        for thread in threads:
            thread.daemon = True
            thread.start()
        deadline = time.monotonic() + arguments.timeout
        with Progress("Bench", arguments.messages) as bar:
            try:
                while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
                    bar.update(self.measured.acked if arguments.receivers else self.measured.sent)
                    time.sleep(LOOK_EVERY_S)
            finally:
                self._stop.set()
        for thread in threads:
            thread.join(WAIT_S + 10)
        if self._problems:
            raise self._problems[0]
        return self.measured

    def _guarded(self, work: Any) -> None:
        server = Server(self._target)
        try:
            work(server)
        except BatonError as problem:
            self._problems.append(problem)
            self._stop.set()
        finally:
            server.close()

    def _take(self) -> tuple[int, int]:
        """The number of the next batch's first message, and its size; 0 if all messages are sent."""
        with self._lock:
            count = min(self._arguments.batch, self._left)
            first = self._arguments.messages - self._left
            self._left -= count
        return first, count

    def _send(self, server: Server) -> None:
        path = queue_path(self._name, "messages:batch")
        while not self._stop.is_set():
            first, count = self._take()
            if not count:
                return
            messages = [self._message(first + place) for place in range(count)]
            started = time.perf_counter()
            results = server.post(path, {"messages": messages})["results"]
            ended = time.perf_counter()
            failed = next((result["error"] for result in results if "error" in result), None)
            if failed is not None:
                raise BatonError(f"A message of the benchmark was refused: {failed['detail']}")
            with self._lock:
                self.measured.sends_s.append(ended - started)
                self.measured.sent += count
                self.measured.last_send = ended

    def _message(self, place: int) -> dict[str, Any]:
        body = {"order": place, "at": time.perf_counter(), "text": ""}
        body["text"] = "x" * max(0, self._arguments.size - len(json.dumps(body)))
        if not self._arguments.fifo:
            return {"body": body}
        return {"body": body, "messageGroupId": f"group-{place % 100}", "deduplicationKey": str(place)}

    def _receive(self, server: Server) -> None:
        asked = {"maxMessages": self._arguments.batch, "waitSeconds": WAIT_S}
        receive, ack = queue_path(self._name, "messages:receive"), queue_path(self._name, "messages:ack")
        while not self._stop.is_set():
            with self._lock:
                if self.measured.acked >= self._arguments.messages:
                    return
            started = time.perf_counter()
            messages = server.post(receive, asked)["messages"]
            received = time.perf_counter()
            if not messages:
                continue
            server.post(ack, {"receiptHandles": [message["receiptHandle"] for message in messages]})
            ended = time.perf_counter()
            with self._lock:
                self.measured.receives_s.append(received - started)
                self.measured.acks_s.append(ended - received)
                self.measured.ends_s += [received - message["body"]["at"] for message in messages]
                self.measured.acked += len(messages)
                self.measured.last_ack = ended


# --- the result -------------------------------------------------------------------------------


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latency(times_s: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    ordered = sorted(times_s)
    shares = {"p50Ms": 0.5, "p95Ms": 0.95, "p99Ms": 0.99, "maxMs": 1.0}
    return {name: round(quantile(ordered, share) * 1000, 2) for name, share in shares.items()} if ordered else {}


def report(arguments: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    send_s = max(1e-6, measured.last_send - measured.first_send)
    whole_s = max(1e-6, measured.last_ack - measured.first_send)
    result: dict[str, Any] = {
        "messages": arguments.messages,
        "bodyBytes": arguments.size,
        "batch": arguments.batch,
        "senders": arguments.senders,
        "receivers": arguments.receivers,
        "complete": measured.sent == arguments.messages
        and (not arguments.receivers or measured.acked >= arguments.messages),
        "sent": measured.sent,
        "sentPerSecond": round(measured.sent / send_s, 1),
        "latency": {"send": latency(measured.sends_s)},
    }
    if arguments.receivers:
        result["acked"] = measured.acked
        result["ackedPerSecond"] = round(measured.acked / whole_s, 1)
        result["latency"]["receive"] = latency(measured.receives_s)
        result["latency"]["ack"] = latency(measured.acks_s)
        result["latency"]["endToEnd"] = latency(measured.ends_s)
    return result


def _print(url: str, result: dict[str, Any]) -> None:
    threads = f"{result['senders']} senders, {result['receivers']} receivers"
    print(
        f"{number(result['messages'])} messages of {number(result['bodyBytes'])} bytes to {url}, {result['batch']} per "
        f"request, {threads}"
    )
    rows = [("sent", f"{result['sentPerSecond']:,.0f} messages per second")]
    if "acked" in result:
        rows.append(("received and acked", f"{result['ackedPerSecond']:,.0f} messages per second"))
    for name, title in (("send", "send request"), ("receive", "receive request"), ("ack", "ack request")):
        rows += _latency_row(title, result["latency"].get(name))
    rows += _latency_row("send to receive", result["latency"].get("endToEnd"))
    print_fields(rows)
    if not result["complete"]:
        note("baton: the time was over before all messages were processed.")


def _latency_row(title: str, found: dict[str, float] | None) -> list[tuple[str, str]]:
    if not found:
        return []
    names = (("p50", "p50Ms"), ("p95", "p95Ms"), ("p99", "p99Ms"), ("max", "maxMs"))
    return [(title, "  ".join(f"{name} {_milliseconds(found[key])}" for name, key in names))]


def _milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 10_000 else duration(value / 1000)
