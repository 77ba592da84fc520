"""Replacing a file: all or nothing, and only its owner can read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batonq.whole_file import replace_file


def test_a_file_is_replaced_and_private(tmp_path: Path) -> None:
    path, beside = tmp_path / "a", tmp_path / "a.new"
    beside.write_bytes(b"left by a process that was killed")
    beside.chmod(0o644)
    replace_file(str(path), b"one")
    assert path.read_bytes() == b"one" and path.stat().st_mode & 0o777 == 0o600
    replace_file(str(path), b"two", sync=True)
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["a"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    replace_file(str(path), b"one")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        replace_file(str(path), b"two", sync=True)
    assert path.read_bytes() == b"one"
