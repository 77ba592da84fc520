"""Every kind of violation, and the rule that it breaks. The reference page is generated from this table."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    rule: str  # what holds in every valid history
    found: str  # the text of a violation


_MESSAGE = {
    "never_sent": Kind(
        "The first event of a message is `sent` or `arrived`; `carried` or `edited`, or in fact any, only before the "
        "opening balance of a history whose front was dropped.",
        "something happened to a message that was never sent",
    ),
    "sent_twice": Kind("A sequence is used once.", "the sequence of a message that exists was given to another"),
    "after_end": Kind(
        "Nothing happens to a message after its end: `deleted`, `settled` as accepted, or a purge of its queue. (A "
        "purge leaves out what is on its way elsewhere.)",
        "something happened to a message after its end",
    ),
    "two_holders": Kind(
        "One holder at a time: before a message is leased again, its last lease was ended by `returned`.",
        "it was leased while another lease was running",
    ),
    "early": Kind("A message is never leased before `visible_at`.", "it was leased before its delay was over"),
    "lease_after_expiry": Kind(
        "A message is never leased at or after `expires_at`.", "it was leased after it had expired"
    ),
    "not_ready": Kind(
        "A message that is owed to another queue, dead, or waiting to be owed again is not leased.",
        "it was leased while it was being moved elsewhere, or dead",
    ),
    "lease_epoch": Kind(
        "Each lease has an epoch one higher than the message's last; the first is 1.",
        "a lease's epoch does not follow the one before",
    ),
    "receive_count": Kind(
        "Each lease increases the receive count by one. An uncharged return decreases it by one; nothing else "
        "changes it.",
        "the receive count does not follow the one before",
    ),
    "stale_epoch": Kind(
        "Only the last lease can delete, extend or return a message: those events have the epoch of the last lease.",
        "something was done with the epoch of an earlier lease",
    ),
    "not_held": Kind(
        "An acknowledgement, an extension and a nack need a current lease: in flight, before its deadline. "
        "Leases that were running during an outage also have the grace period of `epoch`.",
        "the lease that did this had ended",
    ),
    "never_leased": Kind(
        "An acknowledgement, also a late one, an extension, a nack and a dead letter have a lease earlier in the "
        "message's history.",
        "this needs a lease, and the message was never leased",
    ),
    "late_delete": Kind(
        "A delete after the lease expired, by the last holder, is marked: reason `late_ack`, flag LATE. FIFO "
        "queues and queues with strict receipts do not allow it.",
        "a late delete that the queue does not allow, or that is not marked",
    ),
    "lease_cut_short": Kind(
        "A lease expires at its deadline and not before, including the grace period after an outage.",
        "a lease was reported as expired before its deadline",
    ),
    "taken_from_holder": Kind(
        "An operator, or a delete job, deletes and retries only messages that no consumer holds.",
        "an operator deleted or returned a message while a consumer held it",
    ),
    "moved_while_held": Kind(
        "A message that a consumer holds is not moved: a dead letter and a redrive come after the lease was ended by "
        "`returned`. Only a message that expires is moved under its lease.",
        "a message was moved while a consumer held it",
    ),
    "received_too_often": Kind(
        "A message is not leased again after as many receives as its own maximum or its queue's `maxReceiveCount` "
        "allows. Uncharged returns do not count, and a message that is moved starts again.",
        "it was leased more often than its queue or the message allows",
    ),
    "expired_early": Kind(
        "A message expires at `expires_at` and not before.", "a message was reported as expired before its time"
    ),
    "transition": Kind(
        "Every other event is one that [the lifecycle](../explanation/lifecycle.md) allows in the message's state, for "
        "the reason that it has.",
        "this event is not allowed in the message's state",
    ),
    "carried": Kind(
        "A message that is copied forward does not change: state, epoch, receive count, deadline.",
        "the message changed when it was copied forward",
    ),
    "wrong_queue": Kind("A message stays in its queue; a move makes a new message.", "the message changed its queue"),
    "lost": Kind(
        "Every sent message is deleted, moved, expired, purged, or still exists: a message that exists when "
        "the front of the log is dropped was carried forward before.",
        "an existing message was lost when the front of the log was dropped",
    ),
}
_SHARD = {
    "frame_gap": Kind(
        "Frames, and the rows of each frame, are numbered without gaps or duplicates.",
        "events are missing or duplicated",
    ),
    "sequence_gap": Kind(
        "The messages of a shard are numbered consecutively in order of arrival.",
        "a message is missing, or arrived out of order",
    ),
    "owner_epoch": Kind(
        "The epoch of a shard's owner never decreases, and increases only with an `epoch` event.",
        "the owner's epoch decreased, or increased without a new owner",
    ),
    "front_missing": Kind(
        "A history begins with frame 1, or it has a `base` that allows its front to be dropped.",
        "the beginning of the history is missing",
    ),
    "end_missing": Kind(
        "A history reaches as far as its source says: the position of the ingest that filled the lake or, with "
        "`--direct`, the node, data directory or archive.",
        "the end of the history is missing",
    ),
    "time_back": Kind("The clock of a shard never goes back.", "the shard's time went back"),
}
_CHANNEL = {
    "channel_gap": Kind(
        "What one shard owes another is numbered 1, 2, 3 …; each entry is owed, arrives and is settled once, "
        "in that order.",
        "a number of a channel is missing, duplicated, or out of order",
    ),
    "never_owed": Kind(
        "What arrives was owed: by that shard, under that number, to that queue.",
        "something arrived that was not owed, or not to that queue",
    ),
    "never_arrived": Kind(
        "An entry that is settled was accepted or refused by the other shard.",
        "the source recorded an arrival that did not happen",
    ),
    "settled_otherwise": Kind(
        "An entry is settled with the answer of the other shard: accepted or refused. Otherwise there would "
        "be two copies, or none.",
        "accepted at one end of the channel, refused at the other",
    ),
}
_GROUP = {
    "group_order": Kind(
        "The messages of a FIFO group are leased in order: none while an earlier one exists that was not "
        "leased in the same receive. Dead messages do not block their group.",
        "it was leased before an earlier message of its group",
    ),
    "group_exclusion": Kind(
        "A FIFO group is locked while its first message is in flight: later messages were leased in the same "
        "receive, or wait.",
        "it was leased while an earlier message of its group was in flight elsewhere",
    ),
}
_KEY = {
    "duplicate": Kind(
        "No second message is accepted with a remembered deduplication key: within the queue's window, and as "
        "long as the first message exists if the queue says so. A purge forgets keys.",
        "a second message was accepted with the same deduplication key",
    ),
}
_COUNTERS = {
    "conservation": Kind(
        "In every `base`, sent + arrived = deleted + expired + moved + present for each queue, and the counters are "
        "those of the events before it. A purge removes as many messages as its event says.",
        "the counters of a queue do not balance, or are not those of its events",
    ),
}
_TOPIC = {
    "copies": Kind(
        "The messages of a request to a topic have as many copies in its frame as their `published` events say, and a "
        "subscription gets at most one copy of each.",
        "copies of published messages are missing, or were written twice",
    ),
}
_SCHEDULE = {
    "firing": Kind(
        "The firing of a schedule, `schedule_set` with a sequence number, is in one frame with the `sent` event of "
        "that message, which has the flag SCHEDULED; and each such `sent` has its firing.",
        "a schedule fired without its message, or a message was sent without its firing",
    ),
    "due_time": Kind("The due times of one schedule's firings strictly rise.", "a due time was fired twice"),
}

FAMILIES = {
    "of one message": _MESSAGE,
    "of a shard's log": _SHARD,
    "between shards": _CHANNEL,
    "of FIFO groups": _GROUP,
    "of deduplication keys": _KEY,
    "of a queue's counters": _COUNTERS,
    "of topics": _TOPIC,
    "of schedules": _SCHEDULE,
}
KINDS: dict[str, Kind] = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
