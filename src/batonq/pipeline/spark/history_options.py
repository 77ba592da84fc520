"""The options of format("baton") with read=history: what each means, and what was given, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from batonq.errors import InvalidInput
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.reading.history import History, open_history

FRAMES_A_BATCH = 100_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Option(NamedTuple):
    name: str
    default: str
    doc: str


OPTIONS = (
    Option("read", "history", "What is read: `history`, `messages` or `replay`."),
    Option(
        "url",
        "",
        "Where history lies: `http(s)://host:port` of a node, a data directory, or an archive at `file:///…` or "
        "`s3://…`. `path`, or `load(path)`, is the same.",
    ),
    Option("accessKey", "", "Key of the server's own account, for a secured node; else `BATON_ACCESS_KEY_ID`."),
    Option("secretKey", "", "Its secret; else `BATON_SECRET_ACCESS_KEY`."),
    Option("bodies", "false", "Whether there is a column `body`."),
    Option("names", "true", "Whether `queue_name` and `tenant` are filled in. Without, planning is quicker."),
    Option("queues", "", "Only events of these queues: names or numbers, with commas between. An unknown name fails."),
    Option("events", "", "Only these events, with commas between, such as `sent,deleted`."),
    Option("since", "", "Only events at or after this time, such as `2026-01-31T12:00:00Z`; without a zone it is UTC."),
    Option("until", "", "Only events before this time."),
    Option("shards", "", "Only these shards, with commas between; one that is not there fails."),
    Option("start", "earliest", 'Where a new stream begins: `earliest`, `latest` or `{"<shard>": <frame>, …}`.'),
    Option("maxFramesPerBatch", f"{FRAMES_A_BATCH}", "Most frames that a stream takes in one batch, of all shards."),
    Option(
        "framesPerPartition",
        "",
        "Most frames that one task reads; else it is about one segment, or 64 MB of what a node serves.",
    ),
)
_NAMES = {option.name.lower(): option.name for option in OPTIONS} | {"path": "url"}


@dataclass(slots=True, frozen=True)
class HistoryOptions:
    url: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    bodies: bool = False
    names: bool = True
    wanted: Filter = field(default_factory=Filter)
    shards: frozenset[int] | None = None
    start: str = "earliest"
    frames_a_batch: int = FRAMES_A_BATCH
    frames_a_part: int | None = None

    def open(self) -> History:
        return open_history(self.url, access_key=self.access_key, secret_key=self.secret_key)


def parse(given: Mapping[str, str]) -> HistoryOptions:
    """Raises InvalidInput that names the option."""
    options: dict[str, str] = {}
    for key, value in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            raise InvalidInput(f"There is no option {key!r}; there are {', '.join(option.name for option in OPTIONS)}.")
        if value != "":
            options[name] = value
    url = options.get("url", "")
    if not url:
        raise InvalidInput("Say where history lies: the option url is a node, a data directory or an archive.")
    names = _truth(options, "names", True)
    wanted = Filter(
        queues=_queues(options.get("queues")),
        events=_texts(options.get("events")),
        since_ms=_time_ms(options, "since"),
        until_ms=_time_ms(options, "until"),
    )
    if not names and any(isinstance(queue, str) for queue in wanted.queues or ()):
        raise InvalidInput("Queues can be chosen by number only when names are not read: leave out names=false.")
    most = _count(options, "maxFramesPerBatch")
    return HistoryOptions(
        url=url,
        access_key=options.get("accessKey") or os.environ.get("BATON_ACCESS_KEY_ID", ""),
        secret_key=options.get("secretKey") or os.environ.get("BATON_SECRET_ACCESS_KEY", ""),
        bodies=_truth(options, "bodies", False),
        names=names,
        wanted=wanted,
        shards=_shards(options.get("shards")),
        start=options.get("start", "earliest"),
        frames_a_batch=FRAMES_A_BATCH if most is None else most,
        frames_a_part=_count(options, "framesPerPartition"),
    )


def _texts(given: str | None) -> frozenset[str] | None:
    if given is None:
        return None
    return frozenset(text.strip() for text in given.split(",") if text.strip())


def _queues(given: str | None) -> frozenset[int | str] | None:
    texts = _texts(given)
    return None if texts is None else frozenset(int(text) if text.isdigit() else text for text in texts)


def _shards(given: str | None) -> frozenset[int] | None:
    texts = _texts(given)
    if texts is None:
        return None
    wrong = sorted(text for text in texts if not text.isdigit())
    if wrong:
        raise InvalidInput(f"The option shards has numbers with commas between, not {wrong[0]!r}.")
    return frozenset(map(int, texts))


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"The option {name} is true or false, not {text!r}.")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"The option {name} is a whole number from 1 on, not {text!r}.")
    return int(text)


def _time_ms(options: Mapping[str, str], name: str) -> int | None:
    """The first millisecond at or after it."""
    text = options.get(name)
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"The option {name} is a time such as 2026-01-31T12:00:00Z, not {text!r}.") from None
    return -(-microseconds(given) // 1000)


def microseconds(time: datetime) -> int:
    """Since 1970; a time without a zone is UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
