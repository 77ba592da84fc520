"""What the examples are run with: the story and its exit code, and commands that end too soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.harness import entry
from examples.harness.servers import Command, NotStarted
from examples.harness.story import Story


async def _balanced(count: int, directory: Path, story: Story) -> None:
    story.check(f"{count} pieces of work", count == 3)


async def _unbalanced(count: int, directory: Path, story: Story) -> None:
    story.check("all is there", True)
    story.check("nothing is there twice", False)


async def _not_started(count: int, directory: Path, story: Story) -> None:
    raise NotStarted("there is no PostgreSQL")


@pytest.mark.parametrize(("run", "code"), [(_balanced, 0), (_unbalanced, 1), (_not_started, 2)])
def test_the_exit_code_says_whether_the_checks_passed(
    run: entry.Run, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["example", "--things", "3"])
    assert entry.main(run, "things", "things", 10, "Counting {} things") == code
    printed = capsys.readouterr()
    last = {
        0: r"All checks passed\. \(\d+ s\)",
        1: r"A check failed\. \(\d+ s\)",
        2: "there is no PostgreSQL",
    }
    assert re.search(last[code], printed.out + printed.err)


def test_a_count_below_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["example", "--things", "0"])
    with pytest.raises(SystemExit, match="2"):
        entry.main(_balanced, "things", "things", 10, "Counting {} things")


def test_a_command_that_has_ended_says_why(tmp_path: Path) -> None:
    with Command("outbox", "no-such-action", output=tmp_path / "log") as command:
        command._process.wait()
        with pytest.raises(NotStarted, match="unknown command"):
            command.check()
