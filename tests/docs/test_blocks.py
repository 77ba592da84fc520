"""Every command and every piece of Python in the documentation works as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.jobs import Jobs, plain_commands
from tests.docs.pages import Block, blocks, page_id, pages
from tests.docs.runner import PageRun

RUN = ("bash", "python")
# A new language is either run or on this list; `sh` or `console` by mistake would be a block that nobody checks.
NOT_RUN = ("text", "ini", "json", "toml", "xml")


def _runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in RUN]


@pytest.mark.parametrize("page", pages(), ids=page_id)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert [block.name for block in blocks(page) if block.language not in RUN + NOT_RUN] == []


@pytest.mark.parametrize("page", [page for page in pages() if _runnable(page)], ids=page_id)
def test_blocks_run(page: Path, tmp_path: Path, jobs: Jobs) -> None:
    with PageRun(tmp_path, jobs, as_printed=page.parent.name == "tutorials") as run:
        if not any(block.role == "serve" for block in blocks(page)):
            run.serve()
        for block in blocks(page):
            run.run(block)


@pytest.mark.parametrize(
    "text",
    [
        "baton pipeline ingest | cat\n",
        "baton pipeline ingest\ncat x\n",
        "baton pipeline ingest $HOME\n",
        'baton pipeline ingest "$HOME"\n',
        'baton pipeline ingest "`pwd`"\n',
        "baton pipeline ingest || true\n",
        "",
    ],
)
def test_what_needs_a_shell_gets_one(text: str) -> None:
    assert plain_commands(text) == []
    assert plain_commands('baton pipeline ingest --lake  "my lake"\n') == [["pipeline", "ingest", "--lake", "my lake"]]
    long = "baton pipeline redrive --yes \\\n    --where \"f(body, '$.x') > '1'\"\n"
    assert plain_commands(long) == [["pipeline", "redrive", "--yes", "--where", "f(body, '$.x') > '1'"]]
