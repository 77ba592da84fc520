"""Errors that Baton raises in Spark's Python processes come without a traceback; those of others keep theirs."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from batonq.errors import InvalidInput
from batonq.pipeline.spark import source as source_module
from batonq.pipeline.spark.brief_errors import brief_errors
from batonq.pipeline.spark.history_source import HistoryReader, HistoryStreamReader


@brief_errors
class Source:
    def plan(self, problem: Exception, *, limit: int = 1) -> int:
        raise problem

    def read(self, problem: Exception) -> Iterator[int]:
        yield 1
        raise problem


def told(problem: Exception, name: str) -> str:
    """What Spark's process sends to its driver."""
    out = io.BytesIO()
    try:
        list(getattr(Source(), name)(problem))
    except Exception as raised:
        handle_worker_exception(raised, out)
    return out.getvalue()[8:].decode()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is restored
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "any")
    return monkeypatch


@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_of_batons_is_one_line(worker: pytest.MonkeyPatch, name: str) -> None:
    assert told(InvalidInput("No such thing."), name) == "batonq.errors.InvalidInput: No such thing.\n"


@pytest.mark.parametrize("name", ["plan", "read"])
def test_another_error_keeps_its_traceback(worker: pytest.MonkeyPatch, name: str) -> None:
    text = told(ValueError("a defect"), name)
    assert text.startswith("Traceback (most recent call last)") and "raise problem" in text


def test_outside_of_sparks_processes_nothing_changes(worker: pytest.MonkeyPatch) -> None:
    worker.delenv("PYTHON_WORKER_FACTORY_SECRET")
    assert "raise problem" in told(InvalidInput("No such thing."), "plan")


def test_spark_still_sees_the_signatures_and_overrides() -> None:
    """Spark looks at the parameters of latestOffset, and whether pushFilters is overridden."""
    assert list(inspect.signature(HistoryStreamReader.latestOffset).parameters) == ["self", "start", "limit"]
    assert "pushFilters" not in vars(HistoryReader)
    assert list(inspect.signature(source_module.BatonSource.writer).parameters) == ["self", "schema", "overwrite"]
