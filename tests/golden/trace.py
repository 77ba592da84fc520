"""Records and replies as a person reads them: bodies for names, times from the beginning, reasons in words."""

from __future__ import annotations

import json
from collections.abc import Callable

from batonq.core.commands import Accepted, Lease, MessageView
from batonq.core.payload import Lineage, decode
from batonq.core.records import (
    CARRIED_PREFIX,
    EDITED_PREFIX,
    FOREVER_MS,
    ArrivedFlag,
    Reason,
    SentFlag,
    State,
    Type,
    arrived_prefix,
    decode_notes,
)
from batonq.errors import BatonError
from tests.core.rig import T0, Rig, Row

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_SHARD_BITS = 0xFFFF
_LOW32 = 0xFFFFFFFF


def span(ms: int) -> str:
    """1d2h, 30s, 1s500ms; 0s for nothing."""
    parts = []
    for unit, length in _UNITS:
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_span(text: str) -> int:
    total, digits = 0, ""
    units = dict(_UNITS)
    at = 0
    while at < len(text):
        while at < len(text) and text[at].isdigit():
            digits += text[at]
            at += 1
        unit = ""
        while at < len(text) and text[at].isalpha():
            unit += text[at]
            at += 1
        total += int(digits) * units[unit]
        digits = ""
    return total


def moment(ms: int) -> str:
    return "never" if ms == FOREVER_MS else f"+{span(ms - T0)}"


def words(name: str) -> str:
    return name.replace("_", " ").lower()


class Trace:
    """Remembers which body each message has, so that records can name it."""

    def __init__(self, queue_name: Callable[[int], str]) -> None:
        self._queue_name = queue_name
        self._bodies: dict[tuple[int, int], str] = {}  # (shard, sequence)
        self._slots: dict[tuple[int, int], str] = {}  # (shard, slot)

    def body(self, shard: int, sequence: int) -> str:
        return self._bodies[shard, sequence]

    def learn(self, shard: int, row: Row) -> None:
        if row.type in (Type.SENT, Type.PUBLISHED):
            name = decode(row.variable).body.decode()
        elif row.type is Type.ARRIVED and not row.flags & ArrivedFlag.REFUSED:
            if row.flags & ArrivedFlag.OVERLAY:
                name = self._slots[shard, row.w5]
            else:
                name = decode(row.variable[arrived_prefix(row.flags) :]).body.decode()
        else:
            return
        self._bodies[shard, row.sequence] = name
        if row.type is not Type.PUBLISHED:
            self._slots[shard, row.slot] = name

    # --- records -------------------------------------------------------------------------------

    def record(self, shard: int, row: Row) -> str:
        """One line; empty for what says nothing in a scenario (a policy is what the script set)."""
        self.learn(shard, row)
        name = "".join(part.capitalize() for part in row.type.name.split("_"))
        detail = _DETAILS[row.type](row, self._queue_name)
        if detail is None:
            return ""
        who = f" {self.body(shard, row.sequence)} #{row.sequence}" if row.type in _OF_MESSAGES and row.sequence else ""
        where = f" {self._queue_name(row.queue)}" if row.queue else ""
        return f"{moment(row.time)} {name}{who}{where}{': ' if detail else ''}{detail}"

    # --- replies -------------------------------------------------------------------------------

    def accepted(self, result: Accepted | BatonError) -> str:
        if isinstance(result, BatonError):
            return self.error(result)
        if result.duplicate and not result.sequence:
            return "duplicate"
        return f"{'duplicate of ' if result.duplicate else ''}#{result.sequence}"

    def error(self, result: BatonError | None) -> str:
        return "ok" if result is None else f"{type(result).__name__}: {result.message}"

    def lease(self, rig: Rig, lease: Lease) -> str:
        payload = rig.payload(lease)
        times = f"until {moment(lease.deadline_ms)}, sent {moment(lease.sent_ms)}"
        first = f", first received {moment(lease.first_received_ms)}" if lease.receive_count > 1 else ""
        line = f"{payload.body.decode()}/{lease.epoch} #{lease.sequence}: receive {lease.receive_count}, {times}{first}"
        return line + _priority(lease.priority) + _past(payload.lineage, self._queue_name, payload.dedup_id)

    def view(self, rig: Rig, view: MessageView) -> str:
        state = State(view.state)
        body = rig.payload(view).body.decode()
        until = {
            State.VISIBLE: f"since {moment(view.until_ms)}",
            State.DELAYED: f"until {moment(view.until_ms)}",
            State.IN_FLIGHT: f"lease {view.epoch} until {moment(view.until_ms)} by {view.holder}",
            State.OWED: f"since {moment(view.until_ms)}",
        }.get(state, "")
        failed = f", failed {view.error_class or '-'} {view.reason!r}" if view.error_class or view.reason else ""
        line = f"{body} #{view.sequence} {state.name} {until}".rstrip()
        return f"{line}, receives {view.receive_count}, expires {moment(view.expires_ms)}{failed}"


_OF_MESSAGES = (
    Type.SENT,
    Type.PUBLISHED,
    Type.LEASED,
    Type.EXTENDED,
    Type.RETURNED,
    Type.DELETED,
    Type.EDITED,
    Type.CARRIED,
    Type.OWED,
    Type.ARRIVED,
    Type.SETTLED,
)


def _priority(priority: int) -> str:
    return f", priority {priority}" if priority else ""


def _past(lineage: bytes, queue_name: Callable[[int], str], dedup_id: str) -> str:
    """What a consumer is told about where a message has been."""
    past = Lineage.decode(lineage)
    if past == Lineage():
        return ""
    parts = [
        f"{past.moved} from {queue_name(past.source_queue)}" if past.source_queue else past.moved,
        f"first in {queue_name(past.first_queue)}",
        f"attempts {past.attempts}",
    ]
    if past.first_failure_ms:
        parts.append(f"failed {moment(past.first_failure_ms)} to {moment(past.last_failure_ms)}")
    if past.error_class or past.reason:
        parts.append(f"{past.error_class} {past.reason!r}")
    parts.append("same id" if past.message_id else "new id")
    if past.dedup_id and dedup_id == past.dedup_id:
        parts.append("dedup id is the message id")
    return " [" + ", ".join(parts) + "]"


# --- one function a type of record: what it says beside message and queue -------------------------------

Detail = Callable[[Row, Callable[[int], str]], str | None]


def _sent(row: Row, _: Callable[[int], str]) -> str:
    flags = ", keyed" if row.flags & SentFlag.DEDUPLICATED else ""
    flags += " while it lives" if row.flags & SentFlag.DEDUP_LIVES else ""
    flags += f", copy for subscription {row.w5}" if row.flags & SentFlag.FANNED else ""
    flags += " in an envelope" if row.flags & SentFlag.FANNED and decode(row.variable).envelope else ""
    flags += " that waits" if row.flags & SentFlag.WAITING else ""
    flags += ", by a schedule" if row.flags & SentFlag.SCHEDULED else ""
    own = f", at most {row.reason} receives" if row.reason else ""
    group = ", grouped" if row.w4 else ""
    visible = f"visible {moment(row.until)}, expires {moment(row.auxiliary * 1000)}"
    return visible + _priority(row.priority) + group + flags + own


def _leased(row: Row, _: Callable[[int], str]) -> str:
    holder, attempt = decode_notes(row.variable)
    under = f", attempt {attempt}" if attempt else ""
    return f"lease {row.w4 & _LOW32}, receive {row.w4 >> 32}, until {moment(row.until)}, by {holder}{under}"


def _extended(row: Row, _: Callable[[int], str]) -> str:
    return f"lease {row.w4 & _LOW32} until {moment(row.until)}" + (", same attempt" if row.flags else "")


def _returned(row: Row, _: Callable[[int], str]) -> str:
    error = ""
    if row.variable:
        error_class, text = decode_notes(row.variable)
        error = f", {error_class or '-'} {text!r}"
    end = "dead" if row.until == FOREVER_MS else f"visible {moment(row.until)}"
    return f"{words(Reason(row.reason).name)}, {end}{error}"


def _deleted(row: Row, _: Callable[[int], str]) -> str:
    return words(Reason(row.reason).name)


def _owed(row: Row, queue_name: Callable[[int], str]) -> str:
    shard, number = row.until & _SHARD_BITS, row.until >> 16
    to = f"{queue_name(row.auxiliary)} on shard {shard}, entry {number}"
    return f"{words(Reason(row.reason).name)}, to {to}"


def _arrived(row: Row, _: Callable[[int], str]) -> str:
    entry = "" if row.flags & ArrivedFlag.OVERLAY else f", entry {row.w5 >> 16} from shard {row.w5 & _SHARD_BITS}"
    if row.flags & ArrivedFlag.REFUSED:
        return f"{words(Reason(row.reason).name)}{entry}"
    sent = f"sent {moment(row.until)}, receives {row.w4 & _LOW32}, expires {moment(row.auxiliary * 1000)}"
    delay = f", delay {span(row.w4 >> 32)}" if row.w4 >> 32 else ""
    return f"{words(Reason(row.reason).name)}, {sent}{delay}{_priority(row.priority)}{entry}"


def _published(row: Row, _: Callable[[int], str]) -> str:
    dropped = f", {row.until >> 32} dropped" if row.until >> 32 else ""
    return f"copies {row.until & _LOW32}{dropped}" + (", keyed" if row.flags & SentFlag.DEDUPLICATED else "")


def _settled(row: Row, _: Callable[[int], str]) -> str:
    verdict = words(Reason(row.reason).name)
    if row.reason == Reason.ACCEPTED:
        return verdict
    return f"{verdict}, " + ("dead" if row.w4 == FOREVER_MS else f"visible {moment(row.w4)}")


def _purged(row: Row, _: Callable[[int], str]) -> str:
    return f"below #{row.sequence}" + (", done" if row.until else "")


def _reader(row: Row, _: Callable[[int], str]) -> str:
    values = json.loads(row.variable)
    if "epoch" not in values:
        return f"{values['group']} deleted"
    first = values["created_ms"]
    text = f"{values['group']} done up to {place(row.sequence)}, read in epoch {values['epoch'] - first}"
    if values.get("member"):
        text += f" by {values['member']}"
    if values.get("failures"):
        text += f", failed {values['failures']} times at {place(values['failed'])}"
    if values.get("group_epoch"):
        text += f"; epoch {values['group_epoch'] - first}"
        text += " seeking" if values.get("seeking_until_ms") else ""
        shown = (
            f"{member}: {', '.join(map(str, shards)) or '-'}" for member, shards in values.get("members", {}).items()
        )
        text += "".join(f", {one}" for one in shown)
    return text


def place(position: int) -> str:
    """A log position, for people: frame and row."""
    return f"{position >> 16}/{position & 0xFFFF}" if position else "nothing"


def _job(row: Row, _: Callable[[int], str]) -> str:
    job = json.loads(row.variable)
    parts = [f"{job['id']} {job['state']}", f"moved {job['moved']} of {job['to_move']}"]
    if job["examined"]:
        parts.append(f"looked at {job['examined']}, chose {job['matched']}")
    if job["died_again"]:
        parts.append(f"{job['died_again']} died again")
    if job["again_ms"] > row.time:
        parts.append(f"again at {moment(job['again_ms'])}")
    parts += [job[name] for name in ("failure", "why") if job[name]]
    return ", ".join(parts)


def _schedule(row: Row, _: Callable[[int], str]) -> str:
    changes = json.loads(row.variable)
    parts = [changes["name"]]
    if changes.get("gone"):
        return f"{parts[0]} gone"
    if "next_ms" in changes:
        parts.append(f"next {moment(changes['next_ms'])}" if changes["next_ms"] else "over")
    if row.sequence:
        parts.append(f"sent #{row.sequence}, due {moment(changes['last_due_ms'])}")
    parts += [f"{name} {changes[name]}" for name in ("fired", "late", "skipped", "paused") if changes.get(name)]
    return ", ".join([*parts, *([changes["why"]] if changes.get("why") else [])])


def _edited(row: Row, _: Callable[[int], str]) -> str:
    return decode(row.variable[EDITED_PREFIX.size + CARRIED_PREFIX.size :]).body.decode()


def _produced(row: Row, _: Callable[[int], str]) -> str:
    return f"numbers up to {row.until}, the last {row.w4} of them up to #{row.sequence}, kept until {second(row)}"


def second(row: Row) -> str:
    return moment(row.auxiliary * 1000)


def _epoch(row: Row, _: Callable[[int], str]) -> str:
    return f"{row.sequence}" + (f", grace {span(row.w4)}" if row.w4 else "")


def _requested(row: Row, _: Callable[[int], str]) -> str:
    return f"#{row.sequence} and {row.w4 - 1} more, known until {moment(row.until)}"


_DETAILS: dict[Type, Detail] = {
    Type.SENT: _sent,
    Type.SCHEDULE_SET: _schedule,
    Type.LEASED: _leased,
    Type.EXTENDED: _extended,
    Type.RETURNED: _returned,
    Type.DELETED: _deleted,
    Type.OWED: _owed,
    Type.ARRIVED: _arrived,
    Type.SETTLED: _settled,
    Type.QUEUE_PURGED: _purged,
    Type.QUEUE_CLOSED: lambda row, _: "",
    Type.JOB_SET: _job,
    Type.READER_SET: _reader,
    Type.EDITED: _edited,
    Type.PRODUCED: _produced,
    Type.EPOCH: _epoch,
    Type.REQUESTED: _requested,
    Type.CARRIED: lambda row, _: "",
    Type.BASE: lambda row, _: f"for frames from {row.until}",
    Type.POLICY_SET: lambda row, _: None,
    Type.SUBSCRIPTION_SET: lambda row, _: f"{row.w4}" + (" removed" if row.until else ""),
    Type.PUBLISHED: _published,
}
