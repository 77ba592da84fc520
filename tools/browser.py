"""Chromium for the tests of the dashboard: find it, or install Debian's where this user may.

Without a browser the tests are skipped, and `tools/check.py` reports that at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

VARIABLE = "BATON_TEST_BROWSER"  # the path of another Chromium or Chrome
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_S_MAX = 900


def find_browser() -> str | None:
    """The path of Chromium or Chrome, or None."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return shutil.which(chosen)
    return next((path for path in map(shutil.which, NAMES) if path), None)


def why_missing() -> str:
    """Why there is no browser, and what to do."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return f"{VARIABLE} names {chosen}, which is not a program. Name a Chromium or Chrome, or unset it"
    return f"no Chromium was found. Install it (Debian: apt-get install chromium) or name one in {VARIABLE}"


def install_browser() -> bool:
    """Install Debian's Chromium, as root with apt-get. Returns whether there is a browser now."""
    if os.environ.get(VARIABLE) or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print("Installing Chromium for the tests of the dashboard", flush=True)
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"]
    for command in (install, ["apt-get", "update", "--quiet"], install):
        if find_browser() is None:
            _run(command)
    return find_browser() is not None


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(
            command,
            env=environment,
            timeout=INSTALL_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        print(f"{' '.join(command)}: {problem}", file=sys.stderr)
