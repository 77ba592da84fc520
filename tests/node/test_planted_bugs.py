"""Bugs planted into a shard's host and into forwarding: each makes a test fail that is there for it. Others are found
by the simulator, see tests/sim/test_bugs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from batonq.core.commands import Command, Send
from batonq.node.routing.forwarding import RemoteShard
from batonq.node.shard_host import command_groups
from batonq.node.shard_host.command_groups import CommandGroups
from batonq.node.shard_host.group_commit import GroupCommit
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.long_polls import LongPolls
from batonq.node.shard_host.waiters import Poll
from sim.patches import Patches, patched
from tests.node import test_commit, test_forwarding, test_host

Check = Callable[[], None]
stop = GroupCommit.stop


def nothing(*_: object) -> None:
    """Forgotten."""


def stop_in_the_middle(self: GroupCommit, why: str) -> None:
    """Whoever asks a host that failed in the middle of an append what to wait for, waits for ever."""
    appending, assured = self.appending, self._assured
    stop(self, why)
    self.appending, self._assured = appending, assured


def weight_of_bodies(command: Command) -> int:
    return sum(map(len, command.bodies)) if isinstance(command, Send) else 0


BUGS: dict[str, tuple[Patches, Callable[[Path], Check]]] = {
    "a host that failed in the middle of an append hangs": (
        [(GroupCommit, "stop", stop_in_the_middle)],
        lambda path: partial(test_commit.test_a_host_that_is_over_answers_at_once, "fail", False),
    ),
    "what nobody got is not given back": (
        [(ShardHost, "give_back", nothing)],
        lambda path: test_host.test_a_client_that_goes_before_its_answer_gives_the_message_back,
    ),
    "what nobody got is not given back to another node": (
        [(RemoteShard, "_give_back", nothing)],
        lambda path: partial(
            test_forwarding.test_who_comes_too_late_gets_nothing_and_what_is_given_back_was_no_receive, path, True
        ),
    ),
    "long polls of clients that went stay": (
        [(Poll, "abandon", nothing)],
        lambda path: test_host.test_a_client_that_goes_leaves_no_waiter_behind,
    ),
    "newcomers are served before those who wait": (
        [(LongPolls, "serve_first", nothing)],
        lambda path: test_host.test_many_that_come_at_once_do_not_overtake_the_many_that_wait,
    ),
    "any number of messages is executed together": (
        [(CommandGroups, "_portions", lambda self, group: [group])],
        lambda path: test_host.test_large_requests_of_one_turn_fit_into_frames,
    ),
    "attributes weigh nothing": (
        [(command_groups, "size_of", weight_of_bodies)],
        lambda path: test_host.test_attributes_count_towards_the_bytes_of_a_frame,
    ),
}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_bug_planted_into_a_node_is_found(bug: str, tmp_path: Path) -> None:
    patches, check = BUGS[bug]
    check(tmp_path / "sound")()
    with patched(patches), pytest.raises(Exception):  # noqa: B017, PT011 - whatever shows it
        check(tmp_path / "planted")()
