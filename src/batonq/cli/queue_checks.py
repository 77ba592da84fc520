"""Settings of queues that will hurt: what `baton doctor` looks for. It only looks at numbers, and does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batonq.cli.output import duration

FEW_RECEIVES = 2
RECEIVES_ADVISED = 5
VISIBILITY_SHARE = 0.8  # of the visibility timeout: handling that takes longer is close to being delivered twice
LEVELS = ("ok", "warning", "critical")


class Finding(NamedTuple):
    """One result of a check. `remedy` is empty if there is nothing to do."""

    level: str
    check: str
    subject: str  # the queue, or another object
    text: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """The settings and measurements of a queue that the checks need."""

    name: str
    visibility_s: float
    retention_s: float
    max_receives: int = 0  # 0: unlimited
    dead_letter_queue: str = ""
    handling_p99_s: float | None = None  # None: not measured
    receives: int = 0  # since the queue was created


def check_queues(queues: Iterable[QueueFacts]) -> Iterator[Finding]:
    known = {queue.name: queue for queue in queues}
    targets = {queue.dead_letter_queue for queue in known.values()}
    for name in sorted(known):
        yield from check_queue(known[name], known, is_target=name in targets)


def check_queue(queue: QueueFacts, known: Mapping[str, QueueFacts], *, is_target: bool) -> Iterator[Finding]:
    yield from _check_visibility(queue)
    if not queue.dead_letter_queue:
        if not is_target:
            yield Finding(
                "warning",
                "dead-letter queue",
                queue.name,
                f"Queue {queue.name} has no dead-letter queue: a message that always fails "
                + (
                    f"stays in the queue as dead after {queue.max_receives} receives."
                    if queue.max_receives
                    else "is retried until it expires."
                ),
                f"baton queue set {queue.name} --dead-letter-queue {_dead_name(queue.name)} "
                f"--max-receives {RECEIVES_ADVISED}",
            )
        return
    if 0 < queue.max_receives <= FEW_RECEIVES:
        times = "receive" if queue.max_receives == 1 else "receives"
        yield Finding(
            "warning",
            "few receives",
            queue.name,
            f"Queue {queue.name} dead-letters a message after {queue.max_receives} {times}: a worker that restarts, or "
            "one slow request, is enough to lose a good message to the dead-letter queue.",
            f"baton queue set {queue.name} --max-receives {RECEIVES_ADVISED}",
        )
    yield from _check_target(queue, known)


def _check_visibility(queue: QueueFacts) -> Iterator[Finding]:
    p99_s = queue.handling_p99_s
    if p99_s is None or p99_s <= queue.visibility_s * VISIBILITY_SHARE:
        return
    over = p99_s > queue.visibility_s
    yield Finding(
        "critical" if over else "warning",
        "visibility timeout",
        queue.name,
        f"Queue {queue.name} has a visibility timeout of {duration(queue.visibility_s)}, and 1 % of its messages take "
        f"{duration(p99_s)} or longer: "
        + (
            "they are delivered again while they are processed."
            if over
            else "a little slower, and they are delivered again."
        ),
        f"baton queue set {queue.name} --visibility {max(1, round(2 * p99_s))}s",
    )


def _check_target(queue: QueueFacts, known: Mapping[str, QueueFacts]) -> Iterator[Finding]:
    target = known.get(queue.dead_letter_queue)
    if target is None:
        yield Finding(
            "critical",
            "dead-letter queue",
            queue.name,
            f"The dead-letter queue {queue.dead_letter_queue} of queue {queue.name} does not exist.",
            f"baton queue create {queue.dead_letter_queue} --retention 14d",
        )
        return
    if target.retention_s <= queue.retention_s:
        yield Finding(
            "warning",
            "retention",
            queue.name,
            f"Dead letters of {queue.name} are kept for {duration(target.retention_s)} in {target.name}, not longer "
            f"than the {duration(queue.retention_s)} of {queue.name}: they can expire before anyone looks at them.",
            f"baton queue set {target.name} --retention 14d",
        )
    if target.dead_letter_queue:
        yield Finding(
            "warning",
            "chain",
            queue.name,
            f"The dead-letter queue {target.name} of queue {queue.name} has a dead-letter queue itself, "
            f"{target.dead_letter_queue}: whoever reads {target.name} as dead letters misses some of them.",
            f"baton queue set {target.name} --unset dead-letter-queue",
        )


def _dead_name(name: str) -> str:
    return f"{name.removesuffix('.fifo')}-dead" + (".fifo" if name.endswith(".fifo") else "")
