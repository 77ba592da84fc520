"""The description of every field of reader groups and retained history; see field_docs.py."""

from __future__ import annotations

_POSITION = "Position in the retained history: an opaque text, which grows on each shard."
READER_FIELDS = {
    "ReaderSpec.name": "Name of the group: letters, digits, dots, hyphens and underscores, at most 80 characters.",
    "Reader.name": "Name of the group.",
    "from": (
        "Where the group begins: `start` (the oldest retained message), `end` (only new messages), or a time: RFC 3339 "
        "with a time zone, or milliseconds since 1970. Times are compared by the second. A group that exists "
        "stays where it is: use `:seek`."
    ),
    "ReaderSpec.deadLetterQueue": "Queue for messages that failed `maxFailures` times; without it none is skipped.",
    "Reader.deadLetterQueue": "Queue for messages that failed `maxFailures` times; absent: none is skipped.",
    "maxFailures": "Number of failures after which a message is moved to the dead-letter queue and skipped.",
    "sessionSeconds": "Time after which a member that does not join again loses its shards.",
    "member": "Name of the member, unique in the group.",
    "ReaderShard.member": "The member that reads this shard.",
    "epoch": "Epoch of the assignment, from `join`. A shard refuses members of an earlier epoch.",
    "Reader.epoch": "Epoch of the current assignment. It rises whenever the assignment changes.",
    "FetchSpec.shards": "The shards to fetch from, as `join` returned them; default: the server looks them up.",
    "Joined.shards": "The shards that this member may read.",
    "Reader.shards": "The group's progress on each shard of the queue.",
    "ReaderMember.shards": "The shards that the member reads.",
    "after": "Positions to continue after, one per shard; default: what is committed.",
    "FetchSpec.commit": "Positions to commit first, as with `commit`: this saves a request per batch.",
    "FetchSpec.waitSeconds": "Time to wait for the first message.",
    "positions": "Positions, one per shard.",
    "CommitSpec.positions": "The last position that is done on each of some shards.",
    "SeekSpec.positions": "On these shards, the group continues with the messages at these positions.",
    "position": _POSITION,
    "error": "What went wrong, for people: at most 500 characters.",
    "to": "Where the group continues: `start`, `end`, or a time as in `from`.",
    "readers": "The reader groups, by name.",
    "Reader.createdAtMs": "Time when the group was created.",
    "members": "The members, by name.",
    "Joined.members": "Number of members.",
    "resetEpoch": "Epoch of the last seek. What was fetched in an earlier epoch must not be committed.",
    "blockedAt": (
        "The position of a message whose body is lost in the payload store. The message is skipped as soon as the "
        "messages before it are committed."
    ),
    "lagMessages": "Number of retained messages that the group has not committed.",
    "lagSeconds": "Age of the oldest message that the group has not committed; 0 if there is none.",
    "committed": "Position up to which everything is done; number 0: nothing is.",
    "ReaderShard.last": "Position of the newest retained message; absent if nothing is retained.",
    "failedPosition": "Position that failed last; absent if none has failed since the last commit.",
    "failures": "How often the position has failed.",
    "skipped": "Whether the message was moved to the dead-letter queue, and is done for the group.",
    "FailResult.why": "Why the message was not skipped although it has failed often enough.",
    "enteredAtMs": "Time when the message entered the queue: it was sent, or arrived from another queue.",
}
