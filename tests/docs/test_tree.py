"""Nothing in the tree names the machine that it was written on, or the host that packages came from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

# Put together from parts, so that this file does not contain what it looks for.
_HOMES = "|".join(("work", "root", "farm", "home", "Users"))
_HOSTS = "|".join(("pypi", "pythonhosted", "npmjs", "registry"))
MACHINE_PATH = re.compile(rf"(^|[^A-Za-z0-9_.~])/({_HOMES})/[a-z]", re.MULTILINE)
# A directory as an archive of history has an address of that scheme too: only where packages come from is looked for.
LOCAL_INDEX = re.compile(r"/opt" + r"/(pypi|wheels)|(index-url|find-links|@)[ =]+file:" + r"//")
REGISTRY_HOST = re.compile(rf"https?://[a-z.-]*\b({_HOSTS})\.(org|com|io)")
SIZE_KIB_MAX = 1024


def _tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git clone")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> list[tuple[str, str]]:
    found = []
    for path in _tracked():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue  # a binary sample
    return found


@pytest.mark.parametrize("pattern", [MACHINE_PATH, LOCAL_INDEX, REGISTRY_HOST], ids=["home", "index", "host"])
def test_no_file_names_a_machine_or_a_registry(pattern: re.Pattern[str]) -> None:
    assert [(name, match[0]) for name, text in _texts() for match in pattern.finditer(text)] == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert MACHINE_PATH.search("see " + "/wo" + "rk/main/x")
    assert LOCAL_INDEX.search("--find-links /opt" + "/wheels")
    assert LOCAL_INDEX.search("numpy @ file:" + "//tmp/numpy.whl") and LOCAL_INDEX.search("--index-url=file:" + "//x")
    assert not LOCAL_INDEX.search("--archive file:///srv/history")
    assert REGISTRY_HOST.search("https://files." + "pythonhosted" + ".org/x")
    assert not MACHINE_PATH.search("POST /000000000000/jobs and src/home/page")


def test_no_large_file_is_tracked() -> None:
    assert [path.name for path in _tracked() if path.stat().st_size > SIZE_KIB_MAX * 1024] == []


def test_locked_requirements_name_only_versions_and_hashes() -> None:
    line = re.compile(r"([a-z0-9._-]+==\S+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?|#.*|)")
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert [file.stem for file in files] == sorted(file.stem for file in (ROOT / "requirements").glob("*.in"))
    for file in files:
        strange = [text for text in file.read_text().splitlines() if not line.fullmatch(text)]
        assert strange == [], file.name
