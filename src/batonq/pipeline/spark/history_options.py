"""The options of format("baton") with read=history: their meaning, and the checked values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batonq.errors import InvalidInput
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.schema import BODY, columns
from batonq.pipeline.reading.history import History, open_history
from batonq.pipeline.spark.options import Option, access, check_known, flag, time_ms, whole

FRAMES_A_BATCH = 100_000

OPTIONS = (
    Option("read", "`history`", "What to read: `history`, `messages` or `replay`."),
    Option(
        "url",
        "",
        "Source of the history: `http(s)://host:port` of a node, a data directory, or an archive at "
        "`file:///…` or `s3://…`. It can also be the argument of `load(…)`.",
    ),
    Option("accessKey", "`BATON_ACCESS_KEY_ID`", "Access key id of the server's own account, for a secured node."),
    Option("secretKey", "`BATON_SECRET_ACCESS_KEY`", "Secret access key."),
    Option("bodies", "`false`", "Whether to include the column `body`."),
    Option(
        "columns",
        "",
        "Only these columns, separated by commas. Other columns are not decoded. Default: all, without `body`.",
    ),
    Option("names", "`true`", "Whether to fill in `queue_name` and `tenant`. Planning is faster without."),
    Option(
        "queues", "", "Only events of these queues: names or numbers, separated by commas. An unknown name is an error."
    ),
    Option("events", "", "Only these events, separated by commas, for example `sent,deleted`."),
    Option(
        "since",
        "",
        "Only events at or after this time, for example `2026-01-31T12:00:00Z`; the default time zone is UTC. A batch "
        "and a new stream begin there: earlier frames are not read.",
    ),
    Option("until", "", "Only events before this time. A batch ends there: later frames are not read."),
    Option(
        "pushDown",
        "`false`",
        "Whether conditions of a query on queue, event and time are applied before texts are decoded. Only "
        "for a data frame that is used in one query, once.",
    ),
    Option("shards", "", "Only these shards, separated by commas; a missing shard is an error."),
    Option(
        "start",
        "`earliest`",
        'Where a batch or a new stream starts: `earliest`, `latest` (streams only) or `{"<shard>": <frame>, …}`.',
    ),
    Option(
        "end",
        "`latest`",
        'Where a batch ends: `latest`, or `{"<shard>": <frame>, …}` with the first frame of each shard that is not '
        "read. Not for streams.",
    ),
    Option(
        "failOnDataLoss",
        "`true`",
        "Whether frames that were deleted before they were read are an error. `false` continues with the first "
        "retained frame, and logs a warning that says how many frames were skipped.",
    ),
    Option("maxFramesPerBatch", f"`{FRAMES_A_BATCH}`", "Maximum number of frames per micro-batch, over all shards."),
    Option(
        "framesPerPartition",
        "",
        "Maximum number of frames per task. Default: about one segment, or 64 MB from a node.",
    ),
)
_NAMES = {option.name.lower(): option.name for option in OPTIONS} | {"path": "path"}


@dataclass(slots=True, frozen=True)
class HistoryOptions:
    url: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    bodies: bool = False
    columns: tuple[str, ...] | None = None
    names: bool = True
    wanted: Filter = field(default_factory=Filter)
    shards: frozenset[int] | None = None
    start: str = "earliest"
    end: str = "latest"
    fail_on_data_loss: bool = True
    frames_a_batch: int = FRAMES_A_BATCH
    frames_a_part: int | None = None
    push_down: bool = False

    def open(self) -> History:
        return open_history(self.url, access_key=self.access_key, secret_key=self.secret_key)


def parse(given: Mapping[str, str]) -> HistoryOptions:
    """Raises InvalidInput, which names the option."""
    check_known(given, OPTIONS)
    options = {_NAMES[key.lower()]: value for key, value in given.items() if value != ""}
    url, access_key, secret_key = access(options)
    names = flag(options, "names", True)
    chosen = _columns(options.get("columns"))
    wanted = Filter(
        queues=_queues(options.get("queues")),
        events=_texts(options.get("events")),
        since_ms=time_ms(options, "since"),
        until_ms=time_ms(options, "until"),
    )
    if not names and any(isinstance(queue, str) for queue in wanted.queues or ()):
        raise InvalidInput("Queue names cannot be used with names=false. Use queue numbers, or leave out names=false.")
    return HistoryOptions(
        url=url,
        access_key=access_key,
        secret_key=secret_key,
        bodies=flag(options, "bodies") or BODY.name in (chosen or ()),
        columns=chosen,
        names=names,
        wanted=wanted,
        shards=_shards(options.get("shards")),
        start=options.get("start", "earliest"),
        end=options.get("end", "latest"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        frames_a_batch=whole(options, "maxFramesPerBatch", FRAMES_A_BATCH),
        frames_a_part=whole(options, "framesPerPartition", 0) or None,
        push_down=flag(options, "pushDown"),
    )


def _columns(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    known = [column.name for column in columns(bodies=True)]
    found = tuple(dict.fromkeys(text.strip() for text in given.split(",") if text.strip()))
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        raise InvalidInput(
            f"The option columns must be columns of the events table, separated by commas, not {given!r}; the columns "
            f"are {', '.join(known)}."
        )
    return found


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
        raise InvalidInput(f"The option shards must be numbers separated by commas, not {wrong[0]!r}.")
    return frozenset(map(int, texts))
