"""The class-data archive, with a Java that only says yes or no."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batonq.pipeline.spark import classes

GONE = 2**22 + 1  # above every process id of Linux


class Place:
    def __init__(self, root: Path) -> None:
        self.cache, self.spark = root / "cache", root / "spark"
        self.home = root / "java"
        (self.home / "bin").mkdir(parents=True)
        (self.spark / "jars").mkdir(parents=True)
        self.says("exit 0")

    def says(self, script: str) -> None:
        """What Java does when it is asked whether it can."""
        java = self.home / "bin" / "java"
        time_ns = java.stat().st_mtime_ns if java.exists() else None
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        if time_ns is not None:
            os.utime(java, ns=(time_ns, time_ns))  # it is the same Java

    def options(self) -> list[str]:
        return classes.options(str(self.home), self.spark, self.cache)

    def left(self, *, pid: int = GONE) -> Path:
        """What a session leaves: Java wrote an archive, or does so while it runs."""
        options = self.options()
        (written,) = [option for option in options if option.startswith("-XX:ArchiveClassesAtExit=")]
        classes.note(options, pid, "/jars/a.jar")
        part = Path(written.partition("=")[2])
        part.write_text("classes")
        return part


@contextmanager
def running(*words: str) -> Iterator[int]:
    """A process with these words in its command line."""
    with subprocess.Popen(["/bin/sh", "-c", "read line", *words], stdin=subprocess.PIPE) as process:
        yield process.pid


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def shared(options: list[str]) -> str:
    return next((option for option in options if option.startswith("-XX:SharedArchiveFile=")), "")


def test_the_first_session_writes_it_and_the_next_uses_it(place: Place) -> None:
    part = place.left()
    archive = shared(place.options()).partition("=")[2]
    assert archive.endswith(".jsa") and Path(archive).read_text() == "classes"
    assert not part.exists() and not part.with_suffix(".note").exists()
    assert shared(place.options()).partition("=")[2] == archive


def test_what_others_left_is_removed(place: Place) -> None:
    part = place.left()
    assert shared(place.options())
    part.write_text("of another session")
    os.utime(part, (0, 0))
    assert shared(place.options())
    assert not part.exists()


def test_one_that_java_does_not_take_is_thrown_away(place: Place) -> None:
    part = place.left()
    place.says('case "$*" in *Verify*) exit 1;; esac')
    options = place.options()
    assert not shared(options) and any(option.startswith("-XX:ArchiveClassesAtExit=") for option in options)
    assert not part.exists() and not list(place.cache.glob("*.jsa"))


def test_while_one_writes_it_others_start_without(place: Place) -> None:
    part = place.left()
    note = part.with_suffix(".note")
    with running(str(part)) as pid:
        note.write_text(note.read_text().replace(str(GONE), str(pid)))
        assert place.options() == []
        assert part.exists() and note.exists()
    assert shared(place.options()), "it has ended, and left one"


def test_another_process_of_that_number_is_not_waited_for(place: Place) -> None:
    with running("something else") as pid:
        place.left(pid=pid)
        assert shared(place.options())


def test_a_session_that_was_killed_left_none_and_the_next_one_writes(place: Place) -> None:
    place.left().unlink()
    assert any(option.startswith("-XX:ArchiveClassesAtExit=") for option in place.options())
    assert not list(place.cache.glob("*.note"))


def test_a_java_without_an_archive_of_its_own_gets_one(place: Place) -> None:
    """As the wheel's; ours stands on it."""
    place.says(
        'case "$1" in -Xshare:on) exit 1;; esac; for word do case "$word" in *=*) touch "${word#*=}";; esac; done'
    )
    options = place.options()
    (base,) = place.cache.glob("java-*.jsa")
    assert shared(options) == f"-XX:SharedArchiveFile={base}"
    place.says("exit 0")
    place.left()
    assert shared(place.options()).startswith(f"-XX:SharedArchiveFile={base}:{place.cache}/classes-")


@pytest.mark.parametrize("script", ["exit 1", "exit 127"])
def test_where_java_cannot_a_session_starts_without(place: Place, script: str) -> None:
    place.says(script)
    assert place.options() == []


def test_where_nothing_can_be_kept_a_session_starts_without(place: Place) -> None:
    place.cache.write_text("a file, no directory")
    assert place.options() == []
    place.cache = place.cache.parent / "with a space"
    assert place.options() == []
