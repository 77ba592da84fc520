"""The class-data archive, with a Java that only says yes or no."""

from __future__ import annotations

import os
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

    def left(self, *, pid: int = GONE, age_s: float = 120) -> Path:
        """What a session leaves that has ended."""
        (written,) = [option for option in self.options() if option.startswith("-XX:ArchiveClassesAtExit=")]
        part = Path(written.partition("=")[2].replace(f".{os.getpid()}.", f".{pid}."))
        for path in (part, part.with_suffix(".path")):
            path.write_text("/jars/a.jar")
            time = path.stat().st_mtime - age_s
            os.utime(path, (time, time))
        return part


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def shared(options: list[str]) -> str:
    return next((option for option in options if option.startswith("-XX:SharedArchiveFile=")), "")


def test_the_first_session_writes_it_and_the_next_uses_it(place: Place) -> None:
    part = place.left()
    assert part.name.endswith(f".{GONE}.part")
    archive = shared(place.options()).partition("=")[2]
    assert archive.endswith(".jsa") and Path(archive).read_text() == "/jars/a.jar"
    assert not part.exists() and not part.with_suffix(".path").exists()
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
    place.left(pid=os.getpid(), age_s=0)
    assert place.options() == []


def test_one_that_is_perhaps_still_being_written_is_left_alone(place: Place) -> None:
    part = place.left(age_s=0)
    assert place.options() == []
    assert part.exists()


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
