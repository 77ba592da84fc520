"""The wheel has everything: installed into a fresh environment, it serves, with its dashboard and its types."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.system.process import STOP_TIMEOUT_S, Client
from tools.build_dist import ROOT, build

SITE = sysconfig.get_paths()["purelib"]


class Installed(NamedTuple):
    source: Path
    wheel: Path
    bin: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            capture_output=True,
            text=True,
            env=self.environment(),
            cwd=self.bin,
            timeout=STOP_TIMEOUT_S,
            check=False,
        )

    @staticmethod
    def environment() -> dict[str, str]:
        """The dependencies come from this environment. The path is no place for Baton itself, which is installed here
        by a link, and a path does not follow links.
        """
        return {**os.environ, "PYTHONPATH": SITE}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    where = tmp_path_factory.mktemp("dist")
    source, wheel = build(where / "dist")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where / "venv")], check=True)
    python = where / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    subprocess.run([*command, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    return Installed(source, wheel, python.parent)


def test_every_file_of_the_package_is_in_both(installed: Installed) -> None:
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    with zipfile.ZipFile(installed.wheel) as wheel:
        assert wanted - set(wheel.namelist()) == set()
    with tarfile.open(installed.source) as source:
        names = {name.partition("/src/")[2] for name in source.getnames()}
        assert wanted - names == set()
    assert "batonq/py.typed" in wanted and "batonq/api/ui/templates/base.html" in wanted


def test_both_commands_are_this_release(installed: Installed) -> None:
    where = installed.run("python", "-c", "import batonq; print(batonq.__file__)").stdout
    assert where.startswith(str(installed.bin.parent))
    versions = [installed.run(*words) for words in (["baton", "--version"], ["batonq", "--version"])]
    versions.append(installed.run("python", "-m", "batonq", "--version"))
    assert {done.stdout for done in versions} == {versions[0].stdout} and versions[0].stdout.startswith("baton ")


def test_a_server_without_its_extra_says_what_to_install(installed: Installed, tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['google_crc32c'] = None; from batonq.cli.main import main; sys.exit(main())"
    done = installed.run("python", "-c", hidden, "serve", "--data", str(tmp_path / "data"))
    assert done.returncode == 1 and "pip install 'batonq[server]'" in done.stderr
    assert not (tmp_path / "data").exists()


def test_it_serves_with_its_dashboard(installed: Installed, tmp_path: Path) -> None:
    command = [str(installed.bin / "baton"), "serve", "--port", "0", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=installed.environment(), cwd=installed.bin
    )
    assert process.stderr is not None
    try:
        url = process.stderr.readline().split(" serves ")[1].split()[0]
        client = Client(url)
        status, page = client.get("/ui", {"Accept": "text/html"})
        assert status == 200 and "Baton" in page
        assert client.get("/v1/openapi.json")[0] == 200 and client.get("/metrics")[0] == 200
        client.close()
    finally:
        process.terminate()
        assert process.wait(STOP_TIMEOUT_S) == 0
        process.stderr.close()
