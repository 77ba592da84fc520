"""`baton pipeline`: quick to start, one sentence when it fails, and an exit code that means something."""

from __future__ import annotations

import argparse
import io
import json
import logging
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from batonq.cli import pipeline
from batonq.cli.main import main
from batonq.errors import InvalidInput, LogGap
from batonq.pipeline.jobs.context import Bar, Context, Outcome, bar_line, settings_of
from batonq.pipeline.jobs.ingest import asked_to_stop
from batonq.pipeline.jobs.problems import not_started, sentence

WORKER = """\
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
batonq.errors.LogGap: Frame 7 of shard 0 is not in logs any more: the first one is 9.

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


def make_error(text: str) -> Exception:
    """One that looks as if Spark had raised it."""
    kind = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    made: Exception = kind(text)
    return made


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Context], Outcome]], None]:
    """Makes `baton pipeline try` do something."""

    def put(run: Callable[[Context], Outcome]) -> None:
        module: Any = types.ModuleType("tests_try")
        module.HELP, module.run = "try it", run
        module.add_arguments = lambda parser: None
        monkeypatch.setitem(sys.modules, "tests_try", module)
        monkeypatch.setattr(pipeline, "JOBS", {"try": "tests_try"})

    return put


def test_the_command_line_is_made_without_spark() -> None:
    program = (
        "import sys; from batonq.cli.main import build_parser; build_parser();"
        "sys.exit(', '.join({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert result.returncode == 0, f"imported: {result.stderr}"


def test_every_job_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "--help"])
    shown = capsys.readouterr().out
    for name in pipeline.JOBS:
        assert f"\n    {name}" in shown


def test_an_outcome_is_text_or_json(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job(lambda context: Outcome(1, {"violations": 3}, "3 violations"))
    assert main(["pipeline", "try"]) == 1
    assert capsys.readouterr().out == "3 violations\n"
    assert main(["pipeline", "try", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"violations": 3}


@pytest.mark.parametrize(
    "problem", [LogGap("Frame 7 of shard 0 is not in logs any more: the first one is 9."), make_error(WORKER)]
)
def test_a_failure_is_one_sentence(problem: Exception, job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: Context) -> Outcome:
        raise problem

    job(run)
    assert main(["pipeline", "try"]) == 2
    assert capsys.readouterr().err == "baton: Frame 7 of shard 0 is not in logs any more: the first one is 9.\n"
    assert main(["pipeline", "try", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("the first one is 9.\n")


def test_our_own_mistakes_are_not_hidden(job: Any) -> None:
    job(lambda context: Outcome(0, {}, str(1 // 0)))
    with pytest.raises(ZeroDivisionError):
        main(["pipeline", "try"])


def test_ctrl_c_ends_it_and_closes_what_was_open(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def run(_: Context) -> Outcome:
        raise KeyboardInterrupt

    job(run)
    monkeypatch.setattr(Context, "close", lambda self: closed.append(True))
    assert main(["pipeline", "try"]) == 130
    assert closed


def test_what_is_logged_about_java_is_not_shown(
    job: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def run(_: Context) -> Outcome:
        logging.getLogger("py4j").error("java.lang.InterruptedException")
        return Outcome()

    job(run)
    assert main(["pipeline", "try"]) == 0
    assert not caplog.records
    assert main(["pipeline", "try", "--debug"]) == 0
    assert [record.message for record in caplog.records] == ["java.lang.InterruptedException"]


def test_signals_are_noted_and_break_in_on_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with asked_to_stop() as asked:
        for number in (signal.SIGINT, signal.SIGTERM):
            asked.clear()
            signal.raise_signal(number)
            assert asked.is_set()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_package_that_is_missing_is_named(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: Context) -> Outcome:
        raise ImportError("no", name="pyspark")

    job(run)
    assert main(["pipeline", "try"]) == 2
    assert capsys.readouterr().err == "baton: This needs the package pyspark: pip install 'batonq[spark]'.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER, "Frame 7 of shard 0 is not in logs any more: the first one is 9."),
        (
            "[STREAM_FAILED] Query failed\nTraceback (most recent call last):\n  File x\nKeyError: 'queue'\n",
            "Spark failed: KeyError: 'queue'",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
            "Spark failed: Path does not exist: file:/x.",
        ),
        ("", "Spark failed: StreamingQueryException"),
    ],
)
def test_what_spark_says_is_one_line(text: str, said: str) -> None:
    assert sentence(make_error(text)) == said


def test_the_cause_counts() -> None:
    outer = make_error("[INTERNAL] something")
    outer.__cause__ = make_error(WORKER)
    assert sentence(outer).startswith("Frame 7 of shard 0")


def test_a_java_that_went_without_a_word() -> None:
    gone = make_error("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    assert not_started(gone, "x\nError: could not open `/nowhere'\n") == "Java said: Error: could not open `/nowhere'"
    assert not_started(gone, "") == "Spark failed: Java gateway process exited before sending its port number."


def test_settings_are_key_and_value() -> None:
    assert settings_of(["a.b=1", "c=d=e", "f="]) == {"a.b": "1", "c": "d=e", "f": ""}
    with pytest.raises(InvalidInput, match="--conf must be key=value"):
        settings_of(["a.b"])


def test_keys_come_from_the_command_line_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.Namespace(
        history="logs", access_key="A", secret_key="", quiet=True, json=False, debug=False, lake="x", conf=[]
    )
    monkeypatch.setenv("BATON_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("BATON_SECRET_ACCESS_KEY", "S")
    context = Context(options)
    assert context.keys == ("A", "S")
    assert context.source_options == {"url": "logs", "accessKey": "A", "secretKey": "S"}
    with pytest.raises(InvalidInput, match="--history is logs"):
        context.client()


def test_a_bar_is_written_over() -> None:
    assert bar_line("events", 5, 10) == "events  [###############...............] 5 of 10"
    assert bar_line("events", 5_000, None) == "events  5,000"
    stream = io.StringIO()
    bar = Bar(stream, shown=True)
    bar.show("a long text")
    bar.show("short")
    bar.show("")
    assert stream.getvalue() == "\ra long text\rshort      \r     \r"
    Bar(stream, shown=False).show("nothing")
    assert "nothing" not in stream.getvalue()
