"""Taking messages: one by one with everything a message may bring, or plain ones as a run."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

from batonq.core.commands import Accepted, Send
from batonq.core.ids import AWAY, key_hash, message_id
from batonq.core.payload import bare_header, content_mark, encode, plain_header
from batonq.core.records import SentFlag, Type
from batonq.core.shard.columns import counted, joined
from batonq.core.shard.dedup import FOREVER_S, Known
from batonq.core.shard.jobs import Jobs
from batonq.core.shard.producers import RUN_MAX, Produced
from batonq.core.shard.queuestate import QueueState
from batonq.core.spread import key_of, parse, takes
from batonq.errors import BatonError, DeduplicationConflict, InvalidInput, NotOwner, OverLimit
from batonq.priorities import NORMAL_PRIORITY

REQUEST_WINDOW_MS = 120_000  # an SDK has given up on a request by then
INVOCATION_WINDOW_S = REQUEST_WINDOW_MS // 1000
BYTE_MAX = 255  # a record has a byte for each
_SHARD_FULL = "The shard's limit of stored messages is reached. Receive and delete some."
_NOT_TAKEN = "The shard had no room for this message when the request was first made. Send it in a new request."
_ELSEWHERE = "The message's key belongs to another shard now, because the queue was moved or got more shards. Retry."
PRODUCER_WAITS = (
    "An earlier message of this producer was refused, or the limit of producers is reached. Send again from that "
    "message on."
)
_SENT, _REQUESTED, _PRODUCED = int(Type.SENT), int(Type.REQUESTED), int(Type.PRODUCED)
_FIFO, _DEDUPLICATED = int(SentFlag.FIFO), int(SentFlag.DEDUPLICATED)
_DEDUPLICATED_LIVES = _DEDUPLICATED | int(SentFlag.DEDUP_LIVES)


# bodies, digests, and the hash of the SDK's invocation (0: none)
PlainSend = tuple[Sequence[bytes], Sequence[bytes], int]


class Sending(Jobs):
    def send(self, number: int, sends: Sequence[Send], now: int, invocation: int = 0) -> list[Accepted | BatonError]:
        """Take messages; one result each. A repeated invocation gets the first one's answer, and its messages without a
        key are taken by one shard only: the one that it stands for, unless it comes as one that is AWAY from there.

        No messages at all: anything if the invocation is known, else nothing; and one that is AWAY and not known is
        never taken here from then on.
        """
        now = self.begin(now)
        queue = self.queue_state(number)
        if not invocation:
            return self._take(queue, sends, now)
        known = self.requests.get(invocation, now // 1000)
        if not sends:
            if known is None and invocation & AWAY:
                self._remember(number, invocation, 0, 0, now)
            return [self._again(known.sequence)] if known is not None and known.sequence else []
        if known is not None and known.fingerprint == len(sends):
            queue.duplicates += len(sends)
            return [self._again(known.sequence + at) for at in range(len(sends))]
        if self._is_special(queue, invocation, known) and not all(key_of(send, queue.fifo) for send in sends):
            return self._take_keyed(queue, sends, now, lambda at: self._part(queue, invocation, at, known, now))
        first = self.next_sequence
        results = self._take(queue, sends, now)
        if self.next_sequence == first + len(sends):
            self._remember(number, invocation, first, len(sends), now)
        elif self.next_sequence > first:
            self._remember_parts(queue, sends, invocation, results, now)
        return results

    def _take(self, queue: QueueState, sends: Sequence[Send], now: int) -> list[Accepted | BatonError]:
        if sends and sends[0].producer:
            return self._send_numbered(queue, sends, now)
        if sends and self._sends_are_plain(queue, sends):
            return self._send_run(queue, sends, now)
        if any(send.producer for send in sends):
            return self._send_numbered(queue, sends, now)
        return [self._send(queue, send, now) for send in sends]

    def _take_keyed(
        self, queue: QueueState, sends: Sequence[Send], now: int, unkeyed: Callable[[int], Accepted | BatonError]
    ) -> list[Accepted | BatonError]:
        """Take those that have a key, by which they are known; what the others get is told by their places."""
        keyed = [bool(key_of(send, queue.fifo)) for send in sends]
        taken = iter(self._take(queue, [send for send, has_key in zip(sends, keyed, strict=True) if has_key], now))
        return [next(taken) if has_key else unkeyed(at) for at, has_key in enumerate(keyed)]

    def _part(
        self, queue: QueueState, invocation: int, at: int, known: Known | None, now: int
    ) -> Accepted | BatonError:
        """What a message without a key gets again, of a request that was taken in part, or that is not taken here."""
        if known is None or not known.sequence:
            return NotOwner(_ELSEWHERE)
        part = self.requests.get(part_of(invocation, at), now // 1000)
        if part is None:  # its sender was told so, or another shard has it
            return OverLimit(_NOT_TAKEN)
        queue.duplicates += 1
        return self._again(part.sequence)

    def _remember_parts(
        self,
        queue: QueueState,
        sends: Sequence[Send],
        invocation: int,
        results: Sequence[Accepted | BatonError],
        now: int,
    ) -> None:
        """A request that was taken in part: which of its messages without a key were.

        The request comes before its parts, so that it is never known without them.
        """
        taken = {
            at: result.sequence
            for at, (send, result) in enumerate(zip(sends, results, strict=True))
            if isinstance(result, Accepted) and not key_of(send, queue.fifo)
        }
        if taken:
            self._remember(queue.number, invocation, min(taken.values()), 0, now)
        for at, sequence in taken.items():
            self._remember(queue.number, part_of(invocation, at), sequence, 1, now)

    def _again(self, sequence: int) -> Accepted:
        return Accepted(sequence, message_id(self.number, sequence), True)

    def _is_special(self, queue: QueueState, invocation: int, known: Known | None) -> bool:
        """Whether messages without a key are not simply taken: some were, or it is another shard that takes them."""
        if known is not None:
            return not known.fingerprint
        spread = queue.policy.spread
        return bool(spread) and 0 < invocation < AWAY and parse(spread).of_hash(invocation) != self.number

    def send_plain(
        self,
        number: int,
        bodies: Sequence[bytes],
        digests: Sequence[bytes],
        sender: str,
        now: int,
        invocation: int = 0,
        content: int = 0,
        producer: str = "",
        producer_sequence: int = 0,
    ) -> int:
        """Take messages that are nothing but a body, as one run; the first sequence, the others follow.

        No digests at all: none are kept, which only a front door that never shows them asks for. `producer_sequence`
        is the first one's. 0: the queue, or its state, needs them one by one; nothing was done, and `send` must be
        called.
        """
        now = self.begin(now)
        queue = self.queue_state(number)
        if not self._takes_runs(queue):
            return 0
        if invocation:
            known = self.requests.get(invocation, now // 1000)
            if known is not None and known.fingerprint == len(bodies):
                queue.duplicates += len(bodies)
                return known.sequence
            if self._is_special(queue, invocation, known):
                return 0
        key = 0
        if producer:
            key = producer_key(number, producer)
            produced = self.producers.get(key, now // 1000)
            if produced is not None and produced.last >= producer_sequence:
                return 0
            if self._no_producer_more(key, now):
                return 0
            if queue.policy.spread and parse(queue.policy.spread).of_key(producer) != self.number:
                return 0
        first = self._send_bodies(queue, bodies, digests, sender, NORMAL_PRIORITY, now, content)
        if invocation and first:
            self._remember(number, invocation, first, len(bodies), now)
        if key and first:
            count = len(bodies)
            self._produced(number, key, producer_sequence + count - 1, first + count - 1, count, now)
        return first

    def send_together(
        self, number: int, requests: Sequence[PlainSend], sender: str, now: int, content: int = 0
    ) -> list[int]:
        """The same for requests of one sender, whose invocations differ: the first sequence of each.

        None at all: nothing was done, and they must be taken one by one.
        """
        now = self.begin(now)
        queue = self.queue_state(number)
        if not self._takes_runs(queue):
            return []
        firsts: list[int] = []
        bodies: list[bytes] = []
        digests: list[bytes] = []
        for some, some_digests, invocation in requests:
            known = self.requests.get(invocation, now // 1000) if invocation else None
            if known is not None and known.fingerprint == len(some):
                firsts.append(known.sequence)
            elif self._is_special(queue, invocation, known):
                return []
            else:
                firsts.append(0)
                bodies += some
                digests += some_digests
        first = self._send_bodies(queue, bodies, digests, sender, NORMAL_PRIORITY, now, content) if bodies else 0
        if bodies and not first:
            return []
        for at, (some, _, invocation) in enumerate(requests):
            if firsts[at]:
                queue.duplicates += len(some)
                continue
            firsts[at] = first
            if invocation:
                self._remember(number, invocation, first, len(some), now)
            first += len(some)
        return firsts

    def _remember(self, number: int, key: int, first_sequence: int, count: int, now: int) -> None:
        """An SDK's request by the hash of its name; 0 messages: it was taken in part, or is not taken here if it has no
        first one. When too many are remembered, the oldest is forgotten before its time.
        """
        requests = self.requests
        if requests.count(INVOCATION_WINDOW_S) >= self.limits.invocations_max:
            oldest = requests.oldest(INVOCATION_WINDOW_S)
            if oldest and oldest != key:
                self._request(number, oldest, 0, 0, now, 0)
        self._request(number, key, first_sequence, count, now, now + REQUEST_WINDOW_MS)

    def _request(self, number: int, key: int, first_sequence: int, count: int, now: int, until: int) -> None:
        self.frame.add(_REQUESTED | number << 32, first_sequence, now, until, count, key, 0, 0)
        self.requests.put(key, first_sequence, -(-until // 1000), count, now // 1000)

    def _takes_runs(self, queue: QueueState) -> bool:
        policy = queue.policy
        if queue.fifo or policy.delay_ms or policy.messages_max or policy.bytes_max:
            return False
        return takes(policy.spread, self.number)

    def _sends_are_plain(self, queue: QueueState, sends: Sequence[Send]) -> bool:
        """May they be taken as one run? Nothing about them needs a decision of its own."""
        if not self._takes_runs(queue):
            return False
        priority = sends[0].priority
        sender = sends[0].sender
        content = sends[0].content
        producer = sends[0].producer
        digested = bool(sends[0].body_md5)
        for send in sends:
            if (
                send.group
                or send.dedup_id
                or send.attributes
                or send.delay_ms
                or send.ttl_ms is not None
                or send.max_receives
                or send.trace
                or send.priority != priority
                or send.sender != sender
                or send.content != content
                or send.producer != producer
                or bool(send.body_md5) != digested
            ):
                return False
        return True

    def _send_run(self, queue: QueueState, sends: Sequence[Send], now: int) -> list[Accepted | BatonError]:
        bodies = [send.body for send in sends]
        one = sends[0]
        digests = [send.body_md5 for send in sends] if one.body_md5 else []
        first = self._send_bodies(queue, bodies, digests, one.sender, one.priority, now, one.content)
        if not first:
            return [OverLimit(_SHARD_FULL) for _ in sends]
        shard = self.number
        return [Accepted(number, message_id(shard, number), False) for number in range(first, first + len(sends))]

    def _send_bodies(
        self,
        queue: QueueState,
        bodies: Sequence[bytes],
        digests: Sequence[bytes],
        sender: str,
        priority: int,
        now: int,
        content: int,
    ) -> int:
        """The first sequence; 0 when the shard is full."""
        columns = self.columns
        slots = columns.take_run(len(bodies))
        if slots[-1] >= self.limits.slots_max and self._living() + len(bodies) > self.limits.slots_max:
            columns.give_back_run(slots)
            return 0
        first = self.next_sequence
        count = len(bodies)
        expires_s = -(-(now + queue.policy.retention_ms) // 1000)
        frame = self.frame
        if digests:
            before, behind = plain_header(sender, now, content)
            header_bytes = len(before) + len(digests[0]) + len(behind)
            parts = [before, b"", behind, b""] * count
            parts[1::4] = digests
            parts[3::4] = bodies
        else:
            header = bare_header(sender, now, content)
            header_bytes = len(header)
            parts = [header, b""] * count
            parts[1::2] = bodies
        frame.parts += parts
        position = frame.number << 16 | len(frame.rows) >> 3
        offset = frame.variable_bytes
        lengths = array("I", [header_bytes + length for length in map(len, bodies)])
        offsets = array("I", accumulate(lengths, initial=offset))
        frame.variable_bytes = offsets.pop()
        size = frame.variable_bytes - offset
        extents = joined(offsets, lengths)
        sequences = counted("Q", range(first, first + count))
        # What differs between the rows is laid over what they share, a column at a time.
        rows = array("Q", (_SENT | priority << 16 | queue.number << 32, 0, now, now, 0, 0, 0, 0)) * count
        rows[1::8] = sequences
        rows[6::8] = extents
        aux = expires_s << 32
        if isinstance(slots, range):
            rows[7::8] = counted("Q", range(slots.start | aux, slots.stop + aux))
        else:
            rows[7::8] = array("Q", [slot | aux for slot in slots])
        frame.extend(rows)
        self._on_sends(queue, slots, sequences, now, expires_s, priority, position, extents, size)
        return first

    def _living(self) -> int:
        """Messages in the shard. What arrives from elsewhere is not limited, so that slots beyond the limit come to be
        free: it is messages that count, and these are only counted when such a slot is the next.
        """
        return sum(queue.messages for queue in self.queues.values())

    # --- with a producer's numbers -------------------------------------------------------------------

    def _send_numbered(self, queue: QueueState, sends: Sequence[Send], now: int) -> list[Accepted | BatonError]:
        """Messages of producers, and perhaps others: as many at a time as have numbers one after the other."""
        refused: set[int] = set()
        moved: set[int] = set()
        results: list[Accepted | BatonError] = []
        start = 0
        while start < len(sends):
            send = sends[start]
            end = start + 1
            if not send.producer:
                results.append(self._send(queue, send, now))
            else:
                number = send.producer_sequence
                while end < len(sends) and sends[end].producer == send.producer:
                    number += 1
                    if sends[end].producer_sequence != number:
                        break
                    end += 1
                results += self._send_of_producer(queue, sends[start:end], now, refused, moved)
            start = end
        return results

    def _send_of_producer(
        self, queue: QueueState, sends: Sequence[Send], now: int, refused: set[int], moved: set[int]
    ) -> list[Accepted | BatonError]:
        """Messages of one producer, numbered one after the other: those that were taken before are passed over.

        Once one of them is refused for now, so are those behind it, in this batch too: they would make it look like a
        repetition when it is sent again. The same goes for one that has moved: only what has moved too is told so.
        """
        key = producer_key(queue.number, sends[0].producer)
        first = sends[0].producer_sequence
        known = self.producers.get(key, now // 1000)
        old = 0 if known is None else min(max(known.last - first + 1, 0), len(sends))
        results: list[Accepted | BatonError] = []
        if known is not None:
            queue.duplicates += old
            results += [self._taken_before(known, first + at) for at in range(old)]
        sends = sends[old:]
        if not sends:
            return results
        if queue.policy.spread and self._producer_is_elsewhere(queue, sends):
            moved.add(key)
            return results + [NotOwner(_ELSEWHERE) for _ in sends]
        waits = key in moved and not self._has_moved(queue, sends[0], now)
        if key in refused or waits or self._no_producer_more(key, now):
            refused.add(key)
            return results + [OverLimit(PRODUCER_WAITS) for _ in sends]
        if self._sends_are_plain(queue, sends):
            taken = self._send_run(queue, sends, now)
            end = taken[-1]
            if isinstance(end, Accepted):
                self._produced(queue.number, key, sends[-1].producer_sequence, end.sequence, len(sends), now)
            else:
                refused.add(key)
            return results + taken
        last: Accepted | None = None
        number = run = 0
        for send in sends:
            if key in refused or (key in moved and not self._has_moved(queue, send, now)):
                refused.add(key)
                results.append(OverLimit(PRODUCER_WAITS))
                continue
            result = self._send(queue, send, now)
            results.append(result)
            if isinstance(result, Accepted):
                follows = last is not None and (send.producer_sequence, result.sequence) == (
                    number + 1,
                    last.sequence + 1,
                )
                run = run + 1 if follows else 1
                number, last = send.producer_sequence, result
            elif isinstance(result, NotOwner):
                moved.add(key)
            elif result.retryable:
                refused.add(key)
        if last is not None:
            self._produced(queue.number, key, number, last.sequence, run, now)
        return results

    def _taken_before(self, known: Produced, number: int) -> Accepted:
        back = known.last - number
        if back >= known.run:
            return Accepted(0, "", True)
        return self._again(known.message - back)

    def _no_producer_more(self, key: int, now: int) -> bool:
        now_s = now // 1000
        return self.producers.full(now_s, self.limits.producers_max) and self.producers.get(key, now_s) is None

    def _produced(self, queue: int, key: int, number: int, sequence: int, run: int, now: int) -> None:
        expires_s = -(-(now + self.producer_idle_ms) // 1000)
        run = min(run, RUN_MAX)
        self.frame.add(_PRODUCED | queue << 32, sequence, now, number, run, key, 0, expires_s << 32)
        self.producers.put(key, number, sequence, run, expires_s, now // 1000)

    def _producer_is_elsewhere(self, queue: QueueState, sends: Sequence[Send]) -> bool:
        """The same of all of them at once, when nothing but their producer says where they belong."""
        if queue.fifo or any(send.dedup_id for send in sends):
            return False
        return self._belongs_elsewhere(queue, sends[0])

    def _belongs_elsewhere(self, queue: QueueState, send: Send) -> bool:
        """Whether a message that is new here has a key that another shard has since the queue grew."""
        if queue.fifo:
            return self.has_moved(queue, key_hash(send.group))
        key = key_of(send, fifo=False)
        if not key:
            return not takes(queue.policy.spread, self.number)
        return parse(queue.policy.spread).of_key(key) != self.number

    def _has_moved(self, queue: QueueState, send: Send, now: int) -> bool:
        """The same of any message: it is not known here, and would not be taken."""
        known = bool(send.dedup_id) and self._known_by_id(queue, _dedup_key(queue, send), now) is not None
        return not known and self._belongs_elsewhere(queue, send)

    def _known_by_id(self, queue: QueueState, key: int, now: int) -> Known | None:
        """The message with this deduplication id. What a purge has forgotten is not known, unless the message has
        survived it (on its way to another shard) and its id is known as long as it lives.
        """
        known = self.dedup.get(key, now // 1000)
        if known is None or (known.sequence < queue.forgotten_below and known.expires_s != FOREVER_S):
            return None
        return known

    # --- one by one ----------------------------------------------------------------------------------

    def _send(self, queue: QueueState, send: Send, now: int) -> Accepted | BatonError:
        policy = queue.policy
        number = queue.number
        columns = self.columns
        if not 0 <= send.max_receives <= BYTE_MAX or not 0 <= send.priority <= BYTE_MAX:
            return InvalidInput(
                f"The maximum number of receives and the priority of a message must be 0 to {BYTE_MAX}."
            )
        payload = encode(send, now)
        key = 0
        flags = _FIFO if queue.fifo else 0
        if send.dedup_id:
            key = _dedup_key(queue, send)
            known = self._known_by_id(queue, key, now)
            if known is not None:
                if send.strict_content and known.fingerprint != content_mark(payload):
                    return DeduplicationConflict()
                queue.duplicates += 1
                return self._again(known.sequence)
            if self.dedup.full(now // 1000, self.limits.dedup_entries_max):
                return OverLimit(
                    "The limit of remembered deduplication keys is reached. Retry later, or shorten the deduplication "
                    "window."
                )
            flags |= _DEDUPLICATED_LIVES if policy.dedup_lives else _DEDUPLICATED
        if policy.spread and self._belongs_elsewhere(queue, send):
            return NotOwner(_ELSEWHERE)
        full = self._full(queue, len(payload))
        if full:
            return OverLimit(full)
        slot = columns.allocate()
        if slot >= self.limits.slots_max and self._living() >= self.limits.slots_max:
            return OverLimit(_SHARD_FULL)
        sequence = self.next_sequence
        delay = policy.delay_ms if send.delay_ms is None else send.delay_ms
        visible_ms = now + delay
        ttl = policy.retention_ms if send.ttl_ms is None else send.ttl_ms
        expires_s = -(-(visible_ms + ttl) // 1000)
        group = send.group
        tenant = key_hash(group) if group else 0
        frame = self.frame
        w6 = frame.put(payload)
        maximum = send.max_receives
        w0 = _SENT | flags << 8 | send.priority << 16 | maximum << 24 | number << 32
        position = frame.add(w0, sequence, now, visible_ms, tenant, key, w6, slot | expires_s << 32)
        self._on_sent(queue, slot, sequence, now, visible_ms, tenant, expires_s, send.priority, maximum, position, w6)
        if key:
            self._on_dedup(queue, slot, sequence, now, key, content_mark(payload), policy.dedup_lives)
        return Accepted(sequence, message_id(self.number, sequence), False)


def _dedup_key(queue: QueueState, send: Send) -> int:
    scope = send.group if queue.policy.dedup_per_group else ""
    return key_hash(queue.number, queue.dedup_generation, scope, send.dedup_id)


def part_of(request: int, at: int) -> int:
    """The key of one message of a request that was taken in part."""
    return key_hash(request, "part", at)


def producer_key(queue: int, producer: str) -> int:
    return key_hash(queue, "producer", producer)
