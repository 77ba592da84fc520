"""The kinds of messages: every kind runs to its end on real servers, and a server's CPU is measured finely."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import machine
from bench.clients import BenchError
from bench.sections import kinds
from bench.servers import Servers

MESSAGES = 200


def test_every_kind_runs_to_its_end(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        contestants = kinds.contestants_of(servers)
        samples = {each.name: kinds.measure(each, MESSAGES, connections=3) for each in contestants}
        samples |= {each.name: kinds.measure(each, MESSAGES, connections=1) for each in contestants[-2:]}
    compared = {name for kind, (other, _) in kinds.BARS.items() for name in (kind, other)}
    assert set(samples) == compared
    for sample in samples.values():
        assert sample[kinds.LIFE] > sample[kinds.SEND] > 0


def test_another_revision_needs_a_name(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers, pytest.raises(BenchError, match="--against"):
        servers.baton(build="before")


def test_requests_without_a_valid_signature_are_refused(tmp_path: Path) -> None:
    """Otherwise the kind `signed` would measure nothing."""
    with Servers(tmp_path) as servers:
        server = servers.baton("--secure")
        with pytest.raises(BenchError, match="403"):
            server.work()
        server.sign_requests()
        server.work()


def test_cpu_time_is_finer_than_a_tick() -> None:
    outer_s = time.process_time()
    before_us = machine.cpu_us(os.getpid())
    start_s = time.process_time()
    while time.process_time() - start_s < 0.001:
        pass
    used_us = machine.cpu_us(os.getpid()) - before_us
    outer_us = (time.process_time() - outer_s) * 1e6
    assert 1_000 <= used_us <= outer_us
