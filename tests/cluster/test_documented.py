"""What "Run a cluster" prints is what starts: the NATS configuration, the node's command line and the first key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster.processes import ANSWER_S, START_S, wait_until
from tests.support.nats import BINARY
from tests.support.ports import reserve_port

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "how-to" / "run-a-cluster.md").read_text()
SECTION = PAGE[PAGE.index("## Set up separate machines") : PAGE.index("## Authenticate to NATS")]
BLOCKS = re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL)


def test_the_printed_configuration_and_commands_start(tmp_path: Path) -> None:
    """Only addresses, ports and directories are replaced: this machine has others."""
    nats, serve, keys = BLOCKS
    ports: dict[str, int] = {}
    for number, port in re.findall(r"10\.0\.0\.(\d):(\d+)", nats + serve):
        ports.setdefault(f"{number}:{port}", reserve_port(f"127.0.0.{number}"))
    for number in "123":
        ports.setdefault(f"{number}:4222", reserve_port(f"127.0.0.{number}"))
        ports.setdefault(f"{number}:8222", reserve_port(f"127.0.0.{number}"))

    def here(text: str) -> str:
        text = re.sub(r"(?<=[@,])10\.0\.0\.(\d)(?=[,/])", r"10.0.0.\1:4222", text)
        text = text.replace("--host 10.0.0.1 --port 9324", f"--host 127.0.0.1 --port {ports['1:9324']}")
        text = re.sub(
            r"10\.0\.0\.(\d):(\d+)", lambda found: f"127.0.0.{found[1]}:{ports[found[1] + ':' + found[2]]}", text
        )
        return text.replace("/etc/baton", str(tmp_path)).replace("/var/lib", str(tmp_path))

    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        for number in (1, 2, 3):  # as the page says: another name, and the addresses of `listen` and `http`
            text = re.sub(
                r"(listen|http): 10\.0\.0\.1", rf"\1: 10.0.0.{number}", nats.replace("nats-1", f"nats-{number}")
            )
            text = here(text).replace(f"{tmp_path}/nats", f"{tmp_path}/nats-{number}")
            configuration = tmp_path / f"nats-{number}.conf"
            configuration.write_text(text)
            with (tmp_path / f"nats-{number}.log").open("wb") as output:
                running.append(subprocess.Popen([BINARY, "-c", str(configuration)], stdout=output, stderr=output))
        for number in (1, 2, 3):
            url = f"http://127.0.0.{number}:{ports[f'{number}:8222']}/healthz"
            wait_until(lambda url=url: answers(url), f"NATS server {number} is not well")  # type: ignore[misc]

        command = here(serve).replace("\nbaton serve", "\nexec baton serve")
        with (tmp_path / "node.log").open("wb") as output:
            running.append(subprocess.Popen(["sh", "-c", command], env=environment, stdout=output, stderr=output))
        url = f"http://127.0.0.1:{ports['1:9324']}/readyz"
        wait_until(lambda: answers(url) or running[-1].poll() is not None, "the node is not ready")
        assert running[-1].poll() is None, (tmp_path / "node.log").read_text()
        made = subprocess.run(
            ["sh", "-c", here(keys)], env=environment, capture_output=True, text=True, timeout=START_S, check=False
        )
        assert made.returncode == 0 and "AWS_ACCESS_KEY_ID=" in made.stdout, made
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S):
            return True
    except OSError:
        return False
