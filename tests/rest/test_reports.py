"""Reports: files of one directory, listed and read, in a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.node.operations.report_files import FILES_MAX, ReportFiles
from tests.rest.support import Rest
from tests.rest.test_secured import ask
from tests.support.server import ACCOUNT, TestServer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    reports = tmp_path / "reports"
    reports.mkdir()
    for number, name in enumerate(("old.html", "new.html")):
        (reports / name).write_text(f"<h1>{name}</h1>")
        os.utime(reports / name, (1_000 + number, 1_000 + number))
    (reports / "notes.txt").write_text("no report")
    (reports / ".hidden.html").write_text("no report")
    (tmp_path / "secret.html").write_text("secret")
    (reports / "link.html").symlink_to(tmp_path / "secret.html")
    (reports / "folder.html").mkdir()
    return reports


@pytest.fixture
def rest(tmp_path: Path, directory: Path) -> Iterator[Rest]:
    with TestServer(str(tmp_path / "data"), reports=str(directory)) as server:
        made = Rest(server, ACCOUNT)
        yield made
        made.close()


def test_reports_are_listed_newest_first(rest: Rest) -> None:
    assert rest.good("GET", "/v1/reports") == {
        "reports": [
            {"report": "new.html", "bytes": 17, "modifiedAtMs": 1_001_000},
            {"report": "old.html", "bytes": 17, "modifiedAtMs": 1_000_000},
        ]
    }


def test_a_report_is_served_in_a_sandbox(rest: Rest) -> None:
    answer = rest("GET", "/v1/reports/new.html")
    assert (answer.status, answer.body) == (200, b"<h1>new.html</h1>")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'") and "same-origin" not in policy


@pytest.mark.parametrize(
    "name",
    ["none.html", "link.html", "folder.html", "notes.txt", ".hidden.html", "..%2Fsecret.html", "%2Fetc%2Fx.html"],
)
def test_nothing_else_is_served(rest: Rest, name: str) -> None:
    answer = rest("GET", f"/v1/reports/{name}")
    assert answer.status == 404 and b"secret" not in answer.body.replace(b"secret.html", b"")


def test_a_server_without_a_directory_has_no_reports(tmp_path: Path) -> None:
    with TestServer(str(tmp_path)) as server:
        rest = Rest(server, ACCOUNT)
        assert rest.good("GET", "/v1/reports") == {"reports": []}
        assert rest("GET", "/v1/reports/x.html").code == "not_found"
        rest.close()


def test_a_missing_directory_is_named_as_the_problem(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data"), reports=str(tmp_path / "nowhere")) as server:
        rest = Rest(server, ACCOUNT)
        answer = rest("GET", "/v1/reports")
        assert answer.code == "not_found" and "directory of reports" in answer.value["detail"]
        rest.close()


def test_the_list_is_bounded(tmp_path: Path) -> None:
    for number in range(FILES_MAX + 5):
        (tmp_path / f"{number}.html").touch()
    assert len(ReportFiles(str(tmp_path))._list()) == FILES_MAX


def test_a_secured_server_asks_who_you_are(tmp_path: Path, directory: Path) -> None:
    with TestServer(str(tmp_path / "data"), secure=True, reports=str(directory)) as server:
        status, _ = ask(server, "GET", "/v1/reports")
        assert status == 403
