"""Bodies that lie on a cold part of the disk are read by a thread, so that nobody else has to wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batonq.log.disk import RealDisk
from batonq.log.file_log import FileLog
from tests.api.support import json_request
from tests.support.server import TestServer


@pytest.mark.parametrize("more", [{}, {"MessageSystemAttributeNames": ["All"]}], ids=["bodies", "whole"])
def test_a_cold_body_is_read_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    with TestServer(str(tmp_path)) as server:
        json_request(server, "CreateQueue", {"QueueName": "old"})
        for number in range(3):
            json_request(server, "SendMessage", {"QueueUrl": "old", "MessageBody": f"body {number}"})
    warmed: list[tuple[int, Sequence[int]]] = []
    warm = FileLog.warm

    def noted(self: FileLog, numbers: Sequence[int]) -> None:
        warmed.append((threading.get_ident(), numbers))
        warm(self, numbers)

    monkeypatch.setattr(FileLog, "warm", noted)
    monkeypatch.setattr(RealDisk, "is_cold", lambda *_: not warmed)
    with TestServer(str(tmp_path)) as server:
        asked = {"QueueUrl": "old", "MaxNumberOfMessages": 10, **more}
        found = json_request(server, "ReceiveMessage", asked).json["Messages"]
        loop_thread = server.run(_thread)
    assert [message["Body"] for message in found] == ["body 0", "body 1", "body 2"]
    ((thread, numbers),) = warmed
    assert thread not in (loop_thread, threading.get_ident())
    assert len(numbers) == 3


async def _thread() -> int:
    return threading.get_ident()


def test_what_the_system_holds_in_memory_is_not_cold(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    disk = RealDisk()
    handle = disk.open(str(path))
    assert not disk.is_cold(handle, 100_000, 0)
    disk.close(handle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", _raise(BlockingIOError()))
        assert disk.is_cold(0, 1, 0)
        patch.setattr(os, "preadv", _raise(OSError("not known here")))
        assert not disk.is_cold(0, 1, 0)


def _raise(error: OSError) -> Any:
    def call(*_: Any) -> int:
        raise error

    return call
