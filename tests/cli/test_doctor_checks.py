"""What `baton doctor` says about queues, directories and the status of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batonq import __version__
from batonq.cli.doctor import check_directory, check_status
from batonq.cli.queue_checks import Finding, QueueFacts, check_queues

DAY_S = 86_400
NOW_S = 1_794_942_000.0


def facts(name: str = "orders", **more: Any) -> QueueFacts:
    given: dict[str, Any] = {
        "visibility_s": 30,
        "retention_s": 4 * DAY_S,
        "dead_letter_queue": "dead",
        "max_receives": 5,
    }
    return QueueFacts(name=name, **{**given, **more})


DEAD = QueueFacts(name="dead", visibility_s=30, retention_s=14 * DAY_S)


def checked(*queues: QueueFacts) -> list[tuple[str, str, str]]:
    return [(found.level, found.check, found.subject) for found in check_queues(queues)]


def test_a_good_queue_has_no_findings() -> None:
    assert checked(facts(handling_p99_s=20), DEAD) == []


@pytest.mark.parametrize(
    ("change", "finding", "remedy"),
    [
        ({"handling_p99_s": 25}, ("warning", "visibility timeout", "orders"), "queue set orders --visibility 50s"),
        ({"handling_p99_s": 31}, ("critical", "visibility timeout", "orders"), "queue set orders --visibility 62s"),
        ({"max_receives": 1}, ("warning", "few receives", "orders"), "queue set orders --max-receives 5"),
        ({"max_receives": 2}, ("warning", "few receives", "orders"), "queue set orders --max-receives 5"),
        (
            {"dead_letter_queue": ""},
            ("warning", "dead-letter queue", "orders"),
            "queue set orders --dead-letter-queue orders-dead --max-receives 5",
        ),
        (
            {"dead_letter_queue": "gone"},
            ("critical", "dead-letter queue", "orders"),
            "queue create gone --retention 14d",
        ),
        ({"retention_s": 14 * DAY_S}, ("warning", "retention", "orders"), "queue set dead --retention 14d"),
    ],
)
def test_a_setting_that_will_hurt(change: dict[str, Any], finding: tuple[str, str, str], remedy: str) -> None:
    other = facts("other")  # uses the dead-letter queue too, so that it is one in every case
    (found,) = check_queues([facts(**change), other, DEAD])
    assert (found.level, found.check, found.subject) == finding
    assert found.remedy == f"baton {remedy}" and "orders" in found.text


def test_a_chain_of_dead_letter_queues() -> None:
    middle = facts("middle", retention_s=14 * DAY_S, dead_letter_queue="end")
    end = QueueFacts(name="end", visibility_s=30, retention_s=15 * DAY_S)
    assert checked(facts(dead_letter_queue="middle"), middle, end) == [("warning", "chain", "orders")]


def test_a_queue_without_a_dead_letter_queue_and_a_fifo_queue() -> None:
    (found,) = check_queues([facts("a.fifo", dead_letter_queue="", max_receives=0)])
    assert "is retried until it expires" in found.text and "--dead-letter-queue a-dead.fifo" in found.remedy


# --- the status of a server -------------------------------------------------------------------


def status(**more: Any) -> dict[str, Any]:
    verdict = {"level": "ok", "sentence": "All well.", "problems": []}
    return {"version": __version__, "atMs": NOW_S * 1000, "verdict": verdict, "shards": [], **more}


def problems(**more: Any) -> list[Finding]:
    return [found for found in check_status(status(**more), NOW_S) if found.level != "ok"]


def test_a_healthy_server() -> None:
    assert problems(disk={"freeBytes": 50, "totalBytes": 100}) == []


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({"version": "9.9"}, "warning", f"The server has the version 9.9, this command {__version__}."),
        ({"atMs": (NOW_S + 60) * 1000}, "warning", "The server's clock is 1m ahead of the clock of this machine."),
        ({"atMs": (NOW_S - 60) * 1000}, "warning", "The server's clock is 1m behind the clock of this machine."),
        ({"disk": {"freeBytes": 10, "totalBytes": 100}}, "warning", "10 B of 100 B are free at the server (10%)."),
        ({"disk": {"freeBytes": 1, "totalBytes": 100}}, "critical", "1 B of 100 B are free at the server (1%)."),
        ({"shards": [{"number": 3, "state": "stopped", "why": "bad"}]}, "critical", "Shard 3 is stopped: bad."),
    ],
)
def test_a_server_with_a_problem(change: dict[str, Any], level: str, text: str) -> None:
    (found,) = problems(**change)
    assert (found.level, found.text) == (level, text) and found.remedy


def test_what_the_server_says_itself_is_repeated() -> None:
    said = {"level": "critical", "text": "orders is late", "queue": "orders"}
    (found,) = problems(verdict={"level": "critical", "sentence": "x", "problems": [said]})
    assert (found.level, found.subject, found.text) == ("critical", "orders", "orders is late")


# --- a data directory -------------------------------------------------------------------------


def test_permissions_of_a_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    token = tmp_path / "admin-token"
    token.write_text("x")
    token.chmod(0o644)
    found = [each for each in check_directory(str(tmp_path)) if each.check == "permissions"]
    assert [each.level for each in found] == ["warning", "warning"]
    assert found[0].remedy == f"chmod go= {tmp_path}" and found[1].remedy == f"chmod go= {token}"
    tmp_path.chmod(0o700)
    token.chmod(0o600)
    assert {each.level for each in check_directory(str(tmp_path)) if each.check == "permissions"} == {"ok"}
