"""Every command and every piece of Python in the documentation works as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks, page_id, pages
from tests.docs.runner import PageRun

RUN = ("bash", "python")
# A new language is either run or on this list; `sh` or `console` by mistake would be a block that nobody checks.
NOT_RUN = ("text", "ini", "json", "mermaid", "toml", "xml")


def _runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in RUN]


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert [block.name for block in blocks(page) if block.language not in RUN + NOT_RUN] == []


@pytest.mark.parametrize("page", [page for page in pages() if _runnable(page)], ids=page_id)
@pytest.mark.usefixtures("java")
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        if not any(block.role == "serve" for block in blocks(page)):
            run.serve()
        for block in blocks(page):
            run.run(block)
