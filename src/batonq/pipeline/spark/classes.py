"""Java's class-data archive: the classes that a session loads, parsed once, so that later starts are faster.

The first session's Java writes it at its end under a unique name, with a note of its process id. A later start lets
Java check the file, and renames it to the common name. So nobody reads a half-written one, however many start at once.
If Java cannot do it, a session starts without.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

SETTLED_S = 60  # an archive without a note that has not been written for this long will never be completed
TIMEOUT_S = 60
# Java must not report unusable archives: it would print to the user's own output.
_WRITE = "-XX:ArchiveClassesAtExit="
_QUIET = ["-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"]


def options(home: str, spark_home: Path, cache: Path) -> list[str]:
    """Java options: to use the archive if there is one, otherwise to write it at the end."""
    if " " in str(cache):  # Spark expects separate options
        return []
    try:
        key = _key(home, spark_home)
        cache.mkdir(parents=True, exist_ok=True)
        base = _base(home, cache, key)
        archive = cache / f"classes-{key}.jsa"
        _adopt(home, cache, key, base, archive)
        if archive.exists():
            return [_shared(base, archive), *_QUIET]
        if _somebody_writes(cache, key):
            return []
        part = cache / f"classes-{key}.{os.getpid()}.part"
        return [*([_shared(base)] if base else []), f"{_WRITE}{part}", *_QUIET]
    except (OSError, subprocess.SubprocessError):
        return []


class Note(NamedTuple):
    """A note about an archive that a session will leave: an archive is valid for one class path only."""

    pid: int  # of the Java process that writes it
    class_path: str


def written(given: list[str]) -> Path | None:
    """Where a session's Java with these options will write an archive, if it creates one."""
    return next((Path(option.removeprefix(_WRITE)) for option in given if option.startswith(_WRITE)), None)


def note(given: list[str], pid: int, class_path: str) -> None:
    """Record the Java process of a session that was started with these options."""
    if part := written(given):
        try:
            part.with_suffix(".note").write_text(f"{pid}\n{class_path}")
        except OSError:
            pass


def _key(home: str, spark_home: Path) -> str:
    """Changes with the Java version, and with the jars on Spark's class path."""
    java = Path(home, "bin", "java").resolve()
    jars = spark_home / "jars"
    parts = (java, java.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _base(home: str, cache: Path, key: str) -> Path | None:
    """The archive of Java's own classes, on which ours is based. None: it is included in
    Java. A wheel's Java has none.
    """
    base = cache / f"java-{key}.jsa"
    if base.exists():
        return base
    if _runs(home, "-Xshare:on", "-version"):
        return None
    unfinished = cache / f"java-{key}.{os.getpid()}.part"
    if not _runs(home, "-Xshare:dump", _shared(None, unfinished)):
        raise OSError(f"{home} cannot create a class-data archive")
    os.replace(unfinished, base)
    return base


def _adopt(home: str, cache: Path, key: str, base: Path | None, archive: Path) -> None:
    """Adopt the archive of an earlier session if Java accepts it; delete the others."""
    for path in cache.glob(f"classes-{key}.*.note"):
        part = path.with_suffix(".part")
        left = _read(path)
        if left and _writes(left.pid, part):
            continue
        arguments = ["-Xshare:on", "-XX:+VerifySharedSpaces", _shared(base, part)]
        wanted = part.exists() and not archive.exists()
        if left and wanted and _runs(home, *arguments, "-cp", left.class_path, "-version"):
            os.replace(part, archive)
        part.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    for part in cache.glob(f"classes-{key}.*.part"):
        if not part.with_suffix(".note").exists() and time.time() - part.stat().st_mtime > SETTLED_S:
            part.unlink(missing_ok=True)


def _somebody_writes(cache: Path, key: str) -> bool:
    """Whether a running session will leave one. One is enough: it costs seconds at its end."""
    return any(cache.glob(f"classes-{key}.*.note"))


def _read(path: Path) -> Note | None:
    pid, _, class_path = path.read_text().partition("\n")
    return Note(int(pid), class_path) if pid.isdigit() and class_path else None


def _writes(pid: int, part: Path) -> bool:
    """Whether that process is running, and is the Java that writes this archive."""
    try:
        return os.fsencode(part) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _shared(base: Path | None, *archives: Path) -> str:
    return "-XX:SharedArchiveFile=" + ":".join(str(path) for path in (base, *archives) if path is not None)


def _runs(home: str, *arguments: str) -> bool:
    command = [os.path.join(home, "bin", "java"), *arguments]
    result = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    return result.returncode == 0
