"""Declaring tasks, finding an app for the command line, and what is said when that cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batonq
from batonq.cli import worker as command
from batonq.cli.main import main
from batonq.errors import InvalidInput
from batonq.worker import Lane, Message, Rate, Worker
from batonq.worker.metrics import DOCS, Histogram
from tests.worker.memory import MemorySource
from tests.worker.support import work


async def handler(message: Message) -> str:
    return f"handled {message}"


def plain(message: Message) -> None:
    """A handler without async."""


def test_the_function_stays_what_it_is() -> None:
    app = Worker("http://127.0.0.1:1")
    assert app.task(queue="q")(handler) is handler
    task = app.tasks["handler"]
    assert task.run == "async" and task.lanes == (Lane("q"),)
    app.task(queue=[Lane("a", 2), "b"], name="other", rate=5)(plain)
    assert app.tasks["other"].run == "thread" and app.tasks["other"].rates == (Rate(5),)
    assert app.queues() == ["q", "a", "b"] and app.url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({"run": "async"}, plain, 'without async needs run="thread"'),
        ({"run": "thread"}, handler, 'needs run="async"'),
        ({"run": "fibre"}, handler, '"async", "thread" or "process"'),
        ({"concurrency": 0}, handler, "concurrency"),
        ({"visibility": 0}, handler, "visibility"),
        ({"visibility": 50_000}, handler, "visibility"),
        ({"deadline": 0}, handler, "deadline"),
        ({"batch": 2000}, handler, "batch"),
        ({"wait": 30}, handler, "wait"),
        ({"queue": []}, handler, "at least one lane"),
    ],
)
def test_bad_tasks_are_refused_when_they_are_declared(options: dict[str, Any], function: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Worker().task(**{"queue": "q", **options})(function)


def test_two_tasks_of_one_name_are_refused() -> None:
    app = Worker()
    app.task(queue="a")(handler)
    with pytest.raises(ValueError, match="two tasks named 'handler'"):
        app.task(queue="b")(handler)


def test_a_worker_without_tasks_or_for_no_queue_says_so() -> None:
    with pytest.raises(InvalidInput, match="has no tasks"):
        Worker().run()
    app = Worker()
    app.task(queue="a")(handler)
    with pytest.raises(InvalidInput, match=r"No task serves b\. The queues of this worker are a"):
        app.run(queues=["b"])
    with pytest.raises(InvalidInput, match=r"No task serves typo\. The queues of this worker are a"):
        app.run(queues=["a", "typo"])


def test_queues_and_concurrency_can_be_chosen_when_it_runs() -> None:
    source = MemorySource()
    source.send("a", 1)
    source.send("b", 2)
    app = Worker(source=source)
    app.task(queue="a", name="a")(handler)
    app.task(queue="b", name="b")(handler)
    work(app, lambda: source.acked == [1], queues=["a"], concurrency=3)
    assert list(app.counters) == ["a"]
    assert next(given[1] for name, given in source.requests if name == "receive") == 3


def test_a_queue_that_is_chosen_is_one_lane_of_its_task() -> None:
    source = MemorySource()
    source.send("paid", 1)
    source.send("free", 2)
    app = Worker(source=source)
    app.task(queue=[Lane("paid", weight=3), "free"])(handler)
    work(app, lambda: source.acked == [1], queues=["paid"])
    assert {tuple(given[0]) for name, given in source.requests if name == "receive"} == {("paid",)}


def test_metrics_for_prometheus() -> None:
    source = MemorySource()
    source.send("q", 1, 2)
    app = Worker(source=source)
    app.task(queue="q", name='od"d')(handler)
    work(app, lambda: source.left == 0)
    text = app.metrics_text()
    assert 'baton_worker_acked_total{task="od\\"d"} 2' in text and 'baton_worker_running{task="od\\"d"} 0' in text
    for name in DOCS:
        assert f"# TYPE baton_worker_{name}_total counter" in text
    assert "# TYPE baton_worker_handler_duration_seconds histogram" in text
    assert 'baton_worker_handler_duration_seconds_bucket{task="od\\"d",le="+Inf"} 2' in text
    assert 'baton_worker_handler_duration_seconds_count{task="od\\"d"} 2' in text


def test_durations_are_counted_by_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.001, 0.0011, 7.0, 9000.0):
        histogram.observe(seconds)
    lines = histogram.lines("d", 'task="t"')
    found = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert found['d_bucket{task="t",le="0.001"}'] == 2  # a bound belongs to its bucket
    assert found['d_bucket{task="t",le="0.0025"}'] == found['d_bucket{task="t",le="5"}'] == 3
    assert found['d_bucket{task="t",le="10"}'] == found['d_bucket{task="t",le="1800"}'] == 4
    assert found['d_bucket{task="t",le="+Inf"}'] == found['d_count{task="t"}'] == 5
    assert found['d_sum{task="t"}'] == pytest.approx(9007.0026)


# --- the command line


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text: str) -> str:
        name = f"app_of_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        return name

    return write


def test_an_app_is_found_by_its_module_and_name(module: Callable[[str], str]) -> None:
    name = module("from batonq.worker import Worker\napp = Worker()\nother = 5\n")
    assert isinstance(command.load(f"{name}:app"), Worker)
    for given, says in [
        (name, "is not a worker"),
        (f"{name}:missing", "has no variable 'missing'"),
        (f"{name}:other", "another kind of object as 'other'"),
        ("no_such_module:app", "Module 'no_such_module' was not found"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            command.load(given)


def test_a_module_that_does_not_import_says_what_it_misses(module: Callable[[str], str]) -> None:
    name = module("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        command.load(f"{name}:app")


def test_bad_command_lines(module: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    name = module("from batonq.worker import Worker\napp = Worker()\n")
    assert main(["worker", f"{name}:app", "--processes", "2", "--autoscale", "1:2"]) == 1
    assert "either --processes or --autoscale" in capsys.readouterr().err
    assert main(["worker", f"{name}:app", "--processes", "2", "--metrics-port", "9000"]) == 1
    assert "cannot share --metrics-port" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["worker", f"{name}:app", "--concurrency", "0"])


def test_the_names_of_a_worker_are_the_packages_own() -> None:
    assert batonq.Worker is Worker and batonq.Lane is Lane
