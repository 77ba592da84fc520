"""The columns of one batch of events, from the words of its rows and the buffer of their variable parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batonq.core.payload import AS_IS, ENVELOPE_VERSION, NO_DIGEST, PAYLOAD_VERSION, REFERS
from batonq.core.records import (
    ARRIVED_NOTED,
    ARRIVED_PREFIX,
    CARRIED_PREFIX,
    EDITED_PREFIX,
    MESSAGE_TYPES,
    NO_SLOT,
    ArrivedFlag,
    Reason,
    SentFlag,
    State,
    Type,
)
from batonq.errors import LogCorrupt
from batonq.pipeline.events.arrays import Bools, Fixed, Ints, Words, fixed, message_ids, time, within
from batonq.pipeline.events.names import Names, base_detail, schedule_detail
from batonq.pipeline.events.plain import attribute_pairs
from batonq.pipeline.events.ranges import pieces, runs, windows
from batonq.pipeline.events.schema import CONTENTS, EVENTS, REASONS, STATES, arrow_type

# payload._HEADER, records.CARRIED_PREFIX and the start of records.ARRIVED_PREFIX, as numpy types.
_PAYLOAD = np.dtype(
    [
        ("version", "u1"),
        ("content", "u1"),
        ("sender", "<u2"),
        ("group", "<u2"),
        ("dedup_key", "<u2"),
        ("trace", "<u2"),
        ("lineage", "<u4"),
        ("md5", "V16"),
        ("sent_ms", "<u8"),
        ("attributes", "<u4"),
    ]
)
_CARRIED = np.dtype(
    [
        ("state", "u1"),
        ("doomed", "u1"),
        ("maximum", "<u2"),
        ("first_received", "<u4"),
        ("leased", "<u4"),
        ("tenant", "<u8"),
        ("sent_ms", "<u8"),
    ]
)
_ARRIVED = np.dtype([("tenant", "<u8"), ("origin_queue", "<u4"), ("origin_shard", "<u4")])
_LENGTH = np.dtype([("length", "<u2")])
assert _CARRIED.itemsize == CARRIED_PREFIX.size and _ARRIVED.itemsize == ARRIVED_PREFIX.size

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def _table(kinds: tuple[Type, ...]) -> Bools:
    table = np.zeros(256, dtype=bool)
    table[list(kinds)] = True
    return table


_MESSAGES = _table(tuple(MESSAGE_TYPES))
_LEASES = _table(
    (Type.LEASED, Type.EXTENDED, Type.RETURNED, Type.DELETED, Type.OWED, Type.EDITED, Type.CARRIED),
)
_PAYLOADS = _table((Type.SENT, Type.EDITED, Type.CARRIED, Type.ARRIVED))
_WITH_BODIES = _PAYLOADS | _table((Type.PUBLISHED,))
_COUNTED = _table((Type.REQUESTED, Type.PRODUCED, Type.QUEUE_PURGED))
_DETAILED = _table(
    (Type.POLICY_SET, Type.JOB_SET, Type.READER_SET, Type.SCHEDULE_SET, Type.SUBSCRIPTION_SET, Type.BASE)
)
_IN_PAYLOADS = (
    *("sender", "group", "dedup_key", "trace", "lineage", "attributes", "body"),
    *("body_bytes", "attributes_bytes", "content"),
)
_PREFIX = np.zeros(256, dtype=np.int64)
_PREFIX[Type.CARRIED] = CARRIED_PREFIX.size
_PREFIX[Type.EDITED] = EDITED_PREFIX.size + CARRIED_PREFIX.size
_PREFIX[Type.ARRIVED] = ARRIVED_PREFIX.size


class Builder:
    """Builds the columns. Its attributes are the columns of words."""

    def __init__(
        self,
        words: Words,
        kinds: npt.NDArray[np.uint8],
        bases: Ints,
        variable: bytes,
        *,
        schema: pa.Schema,
        dictionaries: bool,
    ) -> None:
        self.schema = schema
        self.needed = frozenset(schema.names)
        self.words = words
        self.kinds = kinds
        self.variable = variable
        self.data = np.frombuffer(variable, dtype=np.uint8)
        self.count = len(kinds)
        self.dictionaries = dictionaries
        self.present = {int(kind) for kind in np.flatnonzero(np.bincount(kinds, minlength=256))}
        self.flags = (words[0] >> np.uint64(8)).astype(np.uint8)
        self.reasons = (words[0] >> np.uint64(24)).astype(np.uint8)
        self.starts = (words[6] & _LOW32).astype(np.int64) + bases
        self.lengths = (words[6] >> _32).astype(np.int64)
        self.found: dict[str, Any] = {}

    # --- all columns ------------------------------------------------------------------------------

    def columns(self, names: Names, learned: dict[int, int]) -> dict[str, Any]:
        """The columns of the schema; cheap ones that are not in it may be among them."""
        self._common(names, learned)
        self._messages()
        self._leases()
        self._channels()
        self._control()
        self._times()
        self._payloads()
        return self.found

    def _needs(self, *columns: str) -> bool:
        return not self.needed.isdisjoint(columns)

    def _is(self, kind: Type) -> Bools | None:
        """The rows of a type; None if there is none, which saves work."""
        return self.kinds == kind if kind in self.present else None

    def _common(self, names: Names, learned: dict[int, int]) -> None:
        found, words = self.found, self.words
        found["time"] = words[2] * np.uint64(1000)
        if self._needs("event"):
            found["event"] = self._coded(self.kinds, EVENTS)
        found["flags"] = self.flags
        queues = words[0] >> _32
        found["queue"] = Fixed(queues, queues != 0)
        found["variable_bytes"] = self.lengths
        if self._needs("reason"):
            reasons = self.reasons
            if {Type.SENT, Type.PUBLISHED} & self.present:  # there it is the maximum of receives
                reasons = np.where((self.kinds == Type.SENT) | (self.kinds == Type.PUBLISHED), 0, reasons)
            found["reason"] = self._coded(reasons, REASONS)
        if self._needs("queue_name", "tenant"):
            self._names(queues, names, learned)

    def _names(self, queues: Words, names: Names, learned: dict[int, int]) -> None:
        numbers = np.unique(queues)
        codes = np.searchsorted(numbers, queues).astype(np.int32)
        known = [names.get(int(number)) for number in numbers]
        valid = np.array([name is not None for name in known], dtype=bool)[codes]
        for queue, at in learned.items():
            valid[:at] &= queues[:at] != queue
        for column, texts in (
            ("queue_name", [name.name if name else "" for name in known]),
            ("tenant", [name.tenant if name else "" for name in known]),
        ):
            self.found[column] = self._dictionary(codes, valid, pa.array(texts, pa.string()))

    def _messages(self) -> None:
        found, words = self.found, self.words
        sequences, slots = words[1], words[7] & _LOW32
        of_message = _MESSAGES[self.kinds]
        valid = of_message & (sequences != 0)
        found["sequence"] = Fixed(sequences, valid)
        found["message_id"] = valid
        found["slot"] = Fixed(slots, valid & (slots != NO_SLOT))
        found["priority"] = Fixed((words[0] >> np.uint64(16)).astype(np.uint8), valid)
        found["number"] = Fixed(sequences, ~of_message & (self.kinds != Type.JOB_SET))
        self.refused = (self.kinds == Type.ARRIVED) & (self.flags & ArrivedFlag.REFUSED != 0)
        holds = _PAYLOADS[self.kinds] & ~self.refused
        expires_s = words[7] >> _32
        found["expires_at"] = Fixed(expires_s * np.uint64(1_000_000), holds & (expires_s != 0))

    def _leases(self) -> None:
        found, words = self.found, self.words
        low, high = words[4] & _LOW32, words[4] >> _32
        leases = _LEASES[self.kinds]
        found["lease_epoch"] = Fixed(low, leases)
        counts, counted = high, leases
        arrived = self._is(Type.ARRIVED)
        if arrived is not None:
            counts, counted = np.where(arrived, low, high), leases | (arrived & ~self.refused)
        found["receive_count"] = Fixed(counts, counted)
        for kind, first, second in (
            (Type.LEASED, "holder", "attempt"),
            (Type.RETURNED, "error_class", "error_text"),
        ):
            rows = self._is(kind) if self._needs(first, second) else None
            if rows is not None:
                self._notes(rows, first, second)

    def _notes(self, rows: Bools, first: str, second: str) -> None:
        """Two texts in one variable part (state.encode_notes), shared by the rows of one request."""
        chosen = np.flatnonzero(rows & (self.lengths > 0))
        if not len(chosen):
            return
        heads, of = runs(self.starts[chosen])
        starts, lengths = self.starts[chosen][heads], self.lengths[chosen][heads]
        sizes = windows(self.data, starts, _LENGTH)["length"].astype(np.int64)
        within(sizes + 2, lengths, "notes")
        self._text_of(first, chosen, starts + 2, sizes, of)
        self._text_of(second, chosen, starts + 2 + sizes, lengths - 2 - sizes, of)

    def _channels(self) -> None:
        found, words = self.found, self.words
        kinds = {Type.OWED, Type.SETTLED, Type.ARRIVED} & self.present
        if not kinds or not self._needs("other_shard", "channel_number", "source_slot", "other_queue"):
            return
        arrived = self.kinds == Type.ARRIVED
        away = (self.kinds == Type.OWED) | (self.kinds == Type.SETTLED)
        overlay = arrived & (self.flags & ArrivedFlag.OVERLAY != 0)
        ways = np.where(away, words[3], words[5])
        shards = ways & np.uint64(0xFFFF)
        numbers = np.where(overlay, words[5] >> _32, ways >> np.uint64(16))
        found["other_shard"] = Fixed(shards, away | arrived)
        self.overlay = overlay
        found["channel_number"] = Fixed(numbers, away | (arrived & ~(overlay & (numbers == 0))))
        found["source_slot"] = Fixed(words[5] & _LOW32, overlay)
        owed = self.kinds == Type.OWED
        others, valid = words[7] >> _32, owed
        whole = np.flatnonzero(arrived & ~overlay & ~self.refused)
        if len(whole):
            within(np.full(len(whole), _ARRIVED.itemsize), self.lengths[whole], "an arrival")
            others, valid = others.copy(), owed.copy()
            others[whole] = windows(self.data, self.starts[whole], _ARRIVED)["origin_queue"]
            valid[whole] = others[whole] != 0
        found["other_queue"] = Fixed(others, valid)

    def _control(self) -> None:
        found, words, kinds = self.found, self.words, self.kinds
        found["messages"] = Fixed(words[4], _COUNTED[kinds])
        if {Type.PUBLISHED, Type.SUBSCRIPTION_SET} & self.present:
            published = kinds == Type.PUBLISHED
            copies = np.where(published, (words[3] & _LOW32) - (words[3] >> _32), words[4])
            found["messages"] = Fixed(copies, _COUNTED[kinds] | published)
        fanned = (kinds == Type.SENT) & (self.flags & SentFlag.FANNED != 0)
        told = kinds == Type.SUBSCRIPTION_SET
        found["subscription"] = Fixed(np.where(told, words[4], words[5]), fanned | told)
        found["grace_ms"] = Fixed(words[4], kinds == Type.EPOCH)
        found["first_frame"] = Fixed(words[3], kinds == Type.BASE)
        chosen = np.flatnonzero(_DETAILED[kinds] & (self.lengths > 0))
        if len(chosen) and self._needs("detail"):
            found["detail"] = self._spread(pa.array([self._detail(at) for at in chosen.tolist()], pa.string()), chosen)

    def _detail(self, at: int) -> str:
        """The detail of one of the few rows that are not about a message."""
        start = int(self.starts[at])
        part = self.variable[start : start + int(self.lengths[at])]
        if self.kinds[at] == Type.SCHEDULE_SET:
            return schedule_detail(part)
        return base_detail(part) if self.kinds[at] == Type.BASE else part.decode()

    # --- messages with their payload ------------------------------------------------------------------

    def _payloads(self) -> None:
        if not self._needs(*_IN_PAYLOADS):
            return
        kinds = self.kinds
        overlay = (kinds == Type.ARRIVED) & (self.flags & ArrivedFlag.OVERLAY != 0)
        chosen = np.flatnonzero(_WITH_BODIES[kinds] & ~self.refused & ~overlay)
        prefixes = _PREFIX[kinds[chosen]]
        noted = (kinds[chosen] == Type.ARRIVED) & (self.flags[chosen] & ArrivedFlag.NOTED != 0)
        prefixes[noted] = ARRIVED_NOTED.size
        starts, lengths = self.starts[chosen] + prefixes, self.lengths[chosen] - prefixes
        within(np.full(len(chosen), _PAYLOAD.itemsize), lengths, "a payload")
        head = windows(self.data, starts, _PAYLOAD)
        if (head["version"] == ENVELOPE_VERSION).any():  # whose length is where a payload has that of its group
            before = np.where(head["version"] == ENVELOPE_VERSION, head["group"], 0).astype(np.int64)
            starts, lengths = starts + before, lengths - before
            within(np.full(len(chosen), _PAYLOAD.itemsize), lengths, "a payload")
            head = windows(self.data, starts, _PAYLOAD)
        if (head["version"] != PAYLOAD_VERSION).any():
            raise LogCorrupt("a payload has a version that this release does not support")
        at = starts + _PAYLOAD.itemsize
        lineages: tuple[Any, Any] = (at, at)
        for field in ("sender", "group", "dedup_key", "trace", "lineage", "attributes"):
            sizes = head[field].astype(np.int64)
            if field == "lineage":
                lineages = (at, sizes)
            elif field == "attributes":
                if self._needs("attributes"):
                    self._attributes(chosen, at, sizes)
            elif sizes.any() and self._needs(field):
                self._text(field, chosen, at, sizes)
            at = at + sizes
        sizes = starts + lengths - at
        if (sizes < 0).any():
            raise LogCorrupt("a payload is shorter than its parts")
        self.found["body_bytes"] = self._some(sizes, chosen)
        self.found["attributes_bytes"] = self._some(head["attributes"].astype(np.int64), chosen)
        if self._needs("content"):
            contents = np.full(self.count, 255, dtype=np.uint8)
            contents[chosen] = head["content"] & np.uint8(0xFF & ~(AS_IS | NO_DIGEST | REFERS))
            self.found["content"] = self._coded(contents, CONTENTS)
        if self._needs("lineage"):
            self._lineages(chosen, *lineages, np.flatnonzero((overlay & ~self.refused) | (kinds == Type.OWED)))
        if self._needs("body"):
            self.found["body"] = self._spread(pieces(self.variable, at, sizes, pa.binary()), chosen)

    def _times(self) -> None:
        """By type, and by the state of a carried message."""
        if not self._needs("deadline", "visible_at", "sent_at", "state", "receives_max"):
            return
        words, kinds = self.words, self.kinds
        until_ms, time_ms = words[3], words[2]
        deadline = (kinds == Type.LEASED) | (kinds == Type.EXTENDED)
        visible = (kinds == Type.SENT) | (kinds == Type.RETURNED)
        visible_ms = until_ms
        sent, sent_ms = kinds == Type.SENT, time_ms
        maxima, limited = self.reasons.astype(np.int64), sent
        if Type.SETTLED in self.present:
            back = (kinds == Type.SETTLED) & (self.reasons != Reason.ACCEPTED)
            visible_ms, visible = np.where(back, words[4], until_ms), visible | back
        arrived = self._is(Type.ARRIVED)
        if arrived is not None:
            sent, sent_ms = sent | (arrived & ~self.refused), np.where(arrived, until_ms, sent_ms)
            delays_ms = words[4] >> _32
            late = arrived & ~self.refused & (delays_ms != 0)
            if late.any():
                visible_ms, visible = np.where(late, time_ms + delays_ms, visible_ms), visible | late
        whole = np.flatnonzero((kinds == Type.CARRIED) | (kinds == Type.EDITED))
        if len(whole):
            skipped = np.where(kinds[whole] == Type.EDITED, EDITED_PREFIX.size, 0)
            within(skipped + _CARRIED.itemsize, self.lengths[whole], "a carried message")
            prefix = windows(self.data, self.starts[whole] + skipped, _CARRIED)
            in_flight = np.zeros(self.count, dtype=bool)
            in_flight[whole] = prefix["state"] == State.IN_FLIGHT
            carried = np.zeros(self.count, dtype=bool)
            carried[whole] = True
            deadline, visible = deadline | in_flight, visible | (carried & ~in_flight)
            sent, sent_ms = sent | carried, sent_ms.copy()
            sent_ms[whole] = prefix["sent_ms"]
            limited, maxima = limited | carried, maxima.copy()
            maxima[whole] = prefix["maximum"]
            states = np.zeros(self.count, dtype=np.uint8)
            states[whole] = prefix["state"]
            self.found["state"] = self._coded(states, STATES)
        self.found["deadline"] = time(until_ms, deadline)
        self.found["visible_at"] = time(visible_ms, visible)
        self.found["sent_at"] = time(sent_ms, sent)
        self.found["receives_max"] = Fixed(maxima, limited & (maxima != 0))

    def _lineages(self, chosen: Ints, starts: Ints, sizes: Ints, moved: Ints) -> None:
        """From a payload, or from the whole variable part of a move."""
        mine = sizes > 0
        moved = moved[self.lengths[moved] > 0]
        rows = np.concatenate((chosen[mine], moved))
        if len(rows):
            all_starts = np.concatenate((starts[mine], self.starts[moved]))
            all_sizes = np.concatenate((sizes[mine], self.lengths[moved]))
            order = np.argsort(rows, kind="stable")
            texts = pieces(self.variable, all_starts[order], all_sizes[order], pa.string())
            self.found["lineage"] = self._spread(texts, rows[order])

    def _attributes(self, chosen: Ints, starts: Ints, sizes: Ints) -> None:
        mine = sizes > 0
        if mine.any():
            encoded = pieces(self.variable, starts[mine], sizes[mine], pa.binary()).dictionary_encode()
            distinct = [attribute_pairs(data) for data in encoded.dictionary.to_pylist()]
            maps = pa.array(distinct, arrow_type("map"))
            codes = encoded.indices.to_numpy(zero_copy_only=False)
            places = np.zeros(self.count, dtype=np.int64)
            valid = np.zeros(self.count, dtype=bool)
            places[chosen[mine]], valid[chosen[mine]] = codes, True
            self.found["attributes"] = maps.take(fixed(pa.int64(), places, valid))

    # --- how a column is put together ---------------------------------------------------------------

    def _some(self, values: Ints, chosen: Ints) -> Fixed:
        every = np.zeros(self.count, dtype=np.int64)
        valid = np.zeros(self.count, dtype=bool)
        every[chosen], valid[chosen] = values, True
        return Fixed(every, valid)

    def _coded(self, codes: Any, meanings: dict[int, str]) -> pa.Array:
        """Small numbers that stand for words; null for an unknown number."""
        known = np.zeros(256, dtype=bool)
        known[list(meanings)] = True
        texts = [meanings.get(code, "") for code in range(max(meanings) + 1)]
        return self._dictionary(np.asarray(codes).astype(np.int32), known[codes], pa.array(texts, pa.string()))

    def _text(self, name: str, chosen: Ints, starts: Ints, sizes: Ints) -> None:
        self._text_of(name, chosen, starts, sizes, np.arange(len(chosen)))

    def _text_of(self, name: str, chosen: Ints, starts: Ints, sizes: Ints, of: Ints) -> None:
        """Row chosen[i] has the text `of[i]`; an empty text is null. Each is decoded once."""
        mine = sizes > 0
        if not mine.any():
            return
        texts = pieces(self.variable, starts[mine], sizes[mine], pa.string())
        places = np.cumsum(mine) - 1
        rows = chosen[mine[of]]
        which = places[of][mine[of]]
        if name in ("dedup_key", "trace"):
            self.found[name] = self._spread(texts.take(pa.array(which)), rows)
            return
        encoded = texts.dictionary_encode()
        codes = np.zeros(self.count, dtype=np.int32)
        valid = np.zeros(self.count, dtype=bool)
        codes[rows] = encoded.indices.to_numpy(zero_copy_only=False)[which]
        valid[rows] = True
        self.found[name] = self._dictionary(codes, valid, encoded.dictionary)

    def _dictionary(self, codes: Any, valid: Bools, texts: pa.Array) -> pa.Array:
        indices = fixed(pa.int32(), codes, valid)
        return pa.DictionaryArray.from_arrays(indices, texts) if self.dictionaries else texts.take(indices)

    def _spread(self, values: pa.Array, rows: Ints) -> pa.Array:
        """values[i] in row rows[i], null elsewhere."""
        if len(rows) == self.count:
            return values
        places = np.zeros(self.count, dtype=np.int64)
        valid = np.zeros(self.count, dtype=bool)
        places[rows], valid[rows] = np.arange(len(rows)), True
        return values.take(fixed(pa.int64(), places, valid))

    def batch(self, columns: dict[str, Any], *, shard: int) -> pa.RecordBatch:
        arrays = []
        columns["shard"] = np.full(self.count, shard)
        if self._needs("message_id"):
            columns["message_id"] = message_ids(shard, self.words[1], columns["message_id"])
        if "other_shard" in columns:
            others = columns["other_shard"]
            others.values = np.where(self.overlay, np.uint64(shard), others.values)
        for field in self.schema:
            column = columns.get(field.name)
            if column is None:
                arrays.append(pa.nulls(self.count, field.type))
            elif isinstance(column, Fixed):
                arrays.append(fixed(field.type, column.values, column.valid))
            elif isinstance(column, np.ndarray):
                arrays.append(fixed(field.type, column, None))
            else:
                arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
