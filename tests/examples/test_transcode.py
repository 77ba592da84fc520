"""The transcode example as a whole, with 20 images: the same code as `make example`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from examples.harness.story import Story
from examples.transcode.run import run


def test_every_upload_is_accounted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.transcode.run.STUCK_S", 900.0)
    story = Story("a small run")
    asyncio.run(run(20, tmp_path, story))
    assert story.failures == []
    printed = capsys.readouterr().out
    for line in (
        "messages in transcode-dead",
        "dry run: 1 of 2 dead-lettered messages have the reason “truncated”",
        "✓ 20 uploads, 20 done by status",
        "✓ 2 corrupt images were dead-lettered, and redriven: 2",
        "✓ 100 objects in the store, and no others",
        "✓ 20 images announced as done, once each",
    ):
        assert line in printed
