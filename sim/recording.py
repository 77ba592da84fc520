"""A run on disk: its history as a file that the checkers can read again, and its logs as an archive for the audit.

The file has one JSON object per line: the run, the queues, every call, every object of the payload store, and every
committed frame, in that order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from batonq.log import frames
from batonq.log.layout import CATALOG_SHARD, segment_name
from sim.checks import Evidence, QueueFacts, check_all
from sim.history import Call, History, Holding, PurgePoint, Receiving, Sending, Steering, Violation, Watching
from sim.ledger import Ledger
from sim.run import Simulation

FORMAT = 5
_CALLS: dict[str, type[Call]] = {
    kind.__name__: kind for kind in (Sending, Receiving, Holding, Steering, Watching, PurgePoint)
}


class Run(msgspec.Struct):
    """The header of a file."""

    format: int
    seed: int
    digest: str
    scenario: str


class Line(msgspec.Struct):
    kind: str
    value: msgspec.Raw


class Stored(msgspec.Struct):
    """An object of the payload store."""

    key: str
    body: bytes


class Committed(msgspec.Struct):
    shard: int
    place: int
    data: bytes


def write_history(simulation: Simulation, path: Path) -> None:
    history = simulation.history
    run = Run(FORMAT, simulation.scenario.seed, history.digest(), str(simulation.scenario))
    values: list[tuple[str, Any]] = [("run", run)]
    values += [("queue", facts) for facts in simulation.known.values()]
    values += [(type(call).__name__, call) for call in history.calls]
    if simulation.storage is not None:
        values += [("object", Stored(key, body)) for key, body in simulation.storage.written.items()]
    witness = simulation.machine.witness
    for shard, committed in witness.frames.items():
        values += [
            ("frame", Committed(shard, place, one.header + one.rows + one.variable))
            for one, place in zip(committed, witness.places[shard], strict=True)
        ]
    with path.open("wb") as file:
        for kind, value in values:
            file.write(msgspec.json.encode(Line(kind, msgspec.Raw(msgspec.json.encode(value)))) + b"\n")


def judge(path: Path) -> tuple[Run, list[Violation]]:
    """Run the checkers on a recorded history."""
    objects: dict[str, bytes] = {}
    history, ledger = History(), Ledger(objects.__getitem__)
    queues: list[QueueFacts] = []
    run: Run | None = None
    with path.open("rb") as file:
        for text in file:
            line = msgspec.json.decode(text, type=Line)
            if line.kind == "run":
                run = msgspec.json.decode(line.value, type=Run)
            elif line.kind == "queue":
                queues.append(msgspec.json.decode(line.value, type=QueueFacts))
            elif line.kind == "object":
                stored = msgspec.json.decode(line.value, type=Stored)
                objects[stored.key] = stored.body
            elif line.kind == "frame":
                committed = msgspec.json.decode(line.value, type=Committed)
                if committed.shard != CATALOG_SHARD:
                    ledger.book(committed.shard).fold(frames.parse(committed.data), committed.place)
            else:
                history.add(msgspec.json.decode(line.value, type=_CALLS[line.kind]))
    if run is None or run.format != FORMAT:
        raise ValueError(f"{path} is no history of this release of the simulator")
    return run, check_all(Evidence(history, ledger, queues))


def write_archive(simulation: Simulation, directory: Path) -> None:
    """Write every frame of every shard, in the form that `baton pipeline audit --direct --history file://DIRECTORY`
    reads.
    """
    from batonq.pipeline.reading.archive import Archive, describe

    archive = Archive.at(f"file://{directory.resolve()}")
    for shard, committed in simulation.machine.witness.frames.items():
        if committed and shard != CATALOG_SHARD:
            data = b"".join(one.header + one.rows + one.variable for one in committed)
            cluster, first = committed[0].cluster, committed[0].number
            archive.write(describe(data, shard, cluster, first, segment_name(first)), data)
