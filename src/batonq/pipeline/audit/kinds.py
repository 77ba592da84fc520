"""Every kind of violation that the audit knows, and the rule that it breaks. The reference page is made from this."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    rule: str  # what holds in every sound history
    found: str  # what a violation says


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
        "One holder at a time: before a message is leased again, its last lease was ended by a `returned`.",
        "it was leased while another lease was running",
    ),
    "early": Kind("A message is never leased before `visible_at`.", "it was leased before its delay was over"),
    "lease_after_expiry": Kind("A message is never leased at or after `expires_at`.", "it was leased after it expired"),
    "not_ready": Kind(
        "A message that is owed to another queue, or dead, is not leased; nor is one that waits to be owed again.",
        "it was leased while it was on its way elsewhere, or dead",
    ),
    "lease_epoch": Kind(
        "Each lease has an epoch one higher than the message's last; the first is 1.",
        "a lease's epoch does not follow the one before",
    ),
    "receive_count": Kind(
        "Each lease raises the receive count by one. A return that is not charged takes one back; nothing else does.",
        "the receive count does not follow the one before",
    ),
    "stale_epoch": Kind(
        "Only the last lease deletes, extends or returns a message: those events have the epoch of the last lease.",
        "something was done under the epoch of an earlier lease",
    ),
    "not_held": Kind(
        "An acknowledgement, an extension and a nack need a lease that runs: in flight, before its deadline. Leases "
        "that ran during an outage have the grace that `epoch` gave on top.",
        "the lease that did this was over",
    ),
    "late_delete": Kind(
        "A delete after the lease ran out, by the last holder, is told apart: reason `late_ack`, flag LATE. FIFO "
        "queues and those with strict receipts have none.",
        "a late delete that the queue's rule does not allow, or that is not marked as what it is",
    ),
    "lease_cut_short": Kind(
        "A lease runs out at its deadline and not before, the grace after an outage counted.",
        "a lease was said to have run out before its deadline",
    ),
    "expired_early": Kind(
        "A message expires at `expires_at` and not before.", "a message was said to have expired before its time"
    ),
    "transition": Kind(
        "Every other event is one that [the lifecycle](../explanation/lifecycle.md) allows in the message's state.",
        "this cannot happen to a message in this state",
    ),
    "carried": Kind(
        "A message that is copied forward is what it was: state, epoch, receive count, deadline.",
        "the message was copied forward otherwise than it was",
    ),
    "wrong_queue": Kind("A message stays in its queue; a move makes a new message.", "the message changed its queue"),
    "lost": Kind(
        "Every message that was sent is deleted, moved, expired, purged, or still there: a message that lives when the "
        "front of the log is dropped was carried forward first.",
        "a living message was left behind when the front of the log was dropped",
    ),
}
_SHARD = {
    "frame_gap": Kind(
        "Frames, and the rows of each frame, are numbered without a gap, and none is there twice.",
        "events are missing, or are there twice",
    ),
    "sequence_gap": Kind(
        "Messages of a shard are numbered one after the other as they come.",
        "a message is missing, or came out of order",
    ),
    "owner_epoch": Kind(
        "The epoch of a shard's owner never goes back, and rises only with an `epoch` event that names it.",
        "the owner's epoch went back, or rose without a new owner",
    ),
    "time_back": Kind("The clock of a shard never goes back.", "the shard's time went back"),
}
_CHANNEL = {
    "channel_gap": Kind(
        "What one shard owes another is numbered 1, 2, 3 …; it is owed, arrives and is settled once, in that order.",
        "a number of a channel is missing, or was used twice, or out of order",
    ),
    "never_owed": Kind(
        "What arrives was owed: by that shard, under that number, to that queue.",
        "something arrived that was not owed, or not to that queue",
    ),
    "never_arrived": Kind(
        "What is settled has arrived, or was refused, at the other shard.",
        "the source was told of an arrival that did not happen",
    ),
    "settled_otherwise": Kind(
        "An entry is settled as it was answered: accepted or refused. Else there would be two copies, or none.",
        "accepted at one end of the channel, refused at the other",
    ),
}
_GROUP = {
    "group_order": Kind(
        "The messages of a FIFO group are leased in their order: none while one before it is there and was not leased "
        "in the same receive. Dead ones step out of the way.",
        "it was leased before an earlier message of its group",
    ),
    "group_exclusion": Kind(
        "A FIFO group is locked while its first message is in flight: what is behind it was leased in the same "
        "receive, or waits.",
        "it was leased while an earlier message of its group was in flight elsewhere",
    ),
}
_KEY = {
    "duplicate": Kind(
        "No second message is taken with a deduplication key that is known: within the queue's window, and as long as "
        "the first lives, if its queue says so. A purge forgets keys.",
        "a second message was taken with the same deduplication key",
    ),
}

FAMILIES = {
    "of one message": _MESSAGE,
    "of a shard's log": _SHARD,
    "between shards": _CHANNEL,
    "of FIFO groups": _GROUP,
    "of deduplication keys": _KEY,
}
KINDS: dict[str, Kind] = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
