"""A Spark cluster of one's own from the installed package, which brings the classes but no scripts to start them.

python -m batonq.pipeline.spark.standalone master --port 7077
python -m batonq.pipeline.spark.standalone worker spark://host:7077 --cores 4 --memory 8g

All further words are those of Spark's own master and worker (`--help` lists them). This process becomes the JVM.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

from batonq.errors import InvalidInput
from batonq.pipeline.spark.java import java_home
from batonq.pipeline.spark.session import cache_directory

ROLES = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}

NO_REST = "-Dspark.master.rest.enabled=false"  # another way for anyone to start programs


def spark_home() -> Path:
    """The directory of Spark's jars and scripts in the package."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidInput("This needs the package pyspark: pip install 'batonq[spark]'.")
    return Path(found.origin).parent


def command(role: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command of a master or a worker, and its environment: with the Java and Python of the pipeline."""
    if role not in ROLES:
        raise InvalidInput(f"The role must be master or worker, not {role!r}.")
    home = spark_home()
    defaults = {"PYSPARK_PYTHON": sys.executable, "SPARK_MASTER_OPTS": NO_REST}
    environment = {**defaults, **os.environ, "JAVA_HOME": java_home(cache_directory()), "SPARK_HOME": str(home)}
    return [str(home / "bin" / "spark-class"), ROLES[role], *words], environment


def main() -> NoReturn:
    role, *words = sys.argv[1:] or [""]
    try:
        program, environment = command(role, words)
    except InvalidInput as problem:
        sys.stderr.write(f"baton: {problem.message}\n")
        sys.exit(2)
    os.execve(program[0], program, environment)


if __name__ == "__main__":
    main()
