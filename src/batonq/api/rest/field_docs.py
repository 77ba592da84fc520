"""The description of every field of the REST API.

A field name means the same in every type. Where it does not, the entry is `Type.field`. A queue's settings are
described in batonq/queue_attributes.py, all other fields here. The OpenAPI document, its page and the reference are
generated from these texts; a test checks that every field has one.
"""

from __future__ import annotations

from batonq.queue_attributes import REST_ATTRIBUTES, camel

_WRITTEN = {
    # --- history
    "shards": "The shards that this server can read.",
    "shard": "The shard's number.",
    "firstFrame": "The first retained frame of the shard's log.",
    "nextFrame": "Number of the log's next frame.",
    "RetainedHistory.bytes": "Size of the shard's log.",
    "RetainedHistory.queues": "The shard's current queues; only if `names` is true.",
    "unavailable": "Shards that are unavailable at the moment: their history is missing from this response.",
    "NamedQueue.number": "Number of the queue in the log; it is never reused.",
    "NamedQueue.tenant": "The queue's account.",
    # --- queues
    "name": (
        "Name of the queue: letters, digits, hyphens and underscores, at most 80 characters. FIFO queues may end in "
        "`.fifo`."
    ),
    "mode": "`STANDARD`, or `FIFO`: the messages of a group are delivered in order, to one consumer at a time.",
    "queueId": "Unique id of the queue. It is never reused: a queue that is deleted and re-created gets a new id.",
    "fifo": "Whether `mode` is FIFO.",
    "arn": "Amazon Resource Name of the queue, for SQS clients and policies.",
    "createdAtMs": "Time when the queue was created.",
    "modifiedAtMs": "Time when the queue's settings were last changed.",
    "delaySeconds": "Delay before the message becomes visible; default: the queue's `delaySeconds`.",
    "Nack.delaySeconds": "Delay before the message becomes visible again; default: the queue's `retry` policy.",
    "maxReceiveCount": "Maximum number of receives of this message; default: the queue's maximum.",
    "deduplication": "How long a `deduplicationKey` is remembered, and its scope.",
    "maxMessages": "Maximum number of messages.",
    "RedriveSpec.maxMessages": "Maximum number of messages to move; default: all.",
    "tags": "Up to 50 tags, each a name and a value. Setting tags replaces all existing ones.",
    "kind": "Kind of policy: `exponential` or `schedule`.",
    "Job.kind": "Kind of job.",
    "baseSeconds": "The first delay.",
    "factor": "Factor by which each delay is longer than the one before.",
    "maxSeconds": "The maximum delay.",
    "delaysSeconds": "The delays in order; the last one repeats.",
    "jitter": "Share of a delay by which it varies at random, so that retries do not coincide.",
    "queues": "The queues.",
    "ReceiveAny.queues": (
        "Queue names, and at most 100 patterns with `*` and `?`. Patterns do not match the dead-letter queues of "
        "matched queues."
    ),
    "nextCursor": "`cursor` of the next page; absent on the last page.",
    # --- stats
    "visible": "Number of messages that can be received now.",
    "inFlight": "Number of messages in flight.",
    "delayed": "Number of delayed messages.",
    "owed": "Number of messages being moved to another queue.",
    "dead": "Number of messages that have used up their receives and have no dead-letter queue.",
    "bytes": "Total size of all messages in the queue.",
    "oldestAgeSeconds": "Age of the oldest message; 0 if the queue is empty.",
    "sent": "Number of messages sent since the queue was created.",
    "received": "Number of messages received: every lease counts.",
    "deleted": "Number of messages acked.",
    "returned": "Number of leases that ended without an ack.",
    "expiredLeases": "Number of leases that expired.",
    "expired": "Number of messages that expired.",
    "deadLettered": "Number of messages that were dead-lettered.",
    "arrived": "Number of messages that arrived from other queues.",
    "duplicates": "Number of duplicate sends.",
    "staleAcks": "Number of acks with a receipt that a newer lease had replaced.",
    "lateAcks": "Number of acks by SQS clients that were accepted after the lease had expired.",
    "waitingReceives": "Number of receives that are waiting for a message.",
    "atMs": "Time of this measurement.",
    "sentPerSecond": "Messages sent per second, averaged over up to a minute; absent in the first reply.",
    "receivedPerSecond": "Messages received per second, over the same time.",
    "deletedPerSecond": "Messages acked per second, over the same time.",
    # --- messages
    "body": "The message: any JSON value; in MessagePack also bytes.",
    "bodyBase64": "The message as bytes in base64, for formats without a type for bytes.",
    "base64": "The bytes in base64.",
    "attributes": "Message attributes, from name to value: string, number, or bytes.",
    "RedriveFilter.attributes": "Only messages that have these attributes with these values.",
    "deduplicationKey": (
        "A second message with the same key is not stored. Reusing a key with a different body is an error."
    ),
    "messageGroupId": "FIFO: the message group, required. Standard: the fairness key.",
    "ttlSeconds": "How long the message is kept after it becomes visible; default: the queue's `retentionSeconds`.",
    "priority": (
        "Messages with a higher priority are delivered first: 0 to 255, or a level: lowest 0, low 64, normal "
        "128, high 192, highest 255. Default: normal."
    ),
    "traceparent": "W3C `traceparent` of the message.",
    "tracestate": "W3C `tracestate` of the message.",
    "clientMessageId": "The client's own id for the entry, returned with its result.",
    "producer": "Identifies the producer and numbers its messages, so that a repeated request stores nothing twice.",
    "id": "Id of the producer, chosen by the client.",
    "Producer.sequence": (
        "Sequence number of the first message; the others follow. A number that is not above the last one is a "
        "duplicate."
    ),
    "messages": "The messages.",
    "messageId": "Id of the message.",
    "currentId": "The message's current id, as in history; `messageId` is the id it had when it was first sent.",
    "sequence": "Sequence number of the message. It increases within a message group, and within a shard.",
    "duplicate": "Whether the message was a duplicate: nothing was stored, and this is the id of the first one.",
    "results": "One result per entry, in order.",
    "error": "The error of this entry.",
    # --- receiving
    "waitSeconds": "How long to wait for the first message; default: the queue's `receiveWaitSeconds`.",
    "ReceiveAny.waitSeconds": "How long to wait for the first message; default 0.",
    "visibilityTimeoutSeconds": (
        "Visibility timeout of the lease; default: the queue's `defaultVisibilityTimeoutSeconds`."
    ),
    "ChangeVisibility.visibilityTimeoutSeconds": (
        "New visibility timeout, counted from now; 0 makes the message visible at once."
    ),
    "consumer": "Name of the consumer, shown to operators as the holder of the message.",
    "attemptId": "FIFO only: a repeated receive with the same id returns the same messages.",
    "receiptHandle": "Receipt of this lease, needed to ack, nack or change visibility.",
    "receiptHandles": "The receipts of the messages to ack.",
    "receiveCount": "How often the message was received, including this time.",
    "queue": "The queue's name.",
    "DeadLetter.queue": "The queue in which the message was dead-lettered.",
    "DeadLetter.messageId": "The message's id in that queue.",
    "sentAtMs": "Time when the message was sent.",
    "firstReceivedAtMs": "Time when the message was first received.",
    "deadlineMs": "Time when the lease ends; 0: it has ended.",
    "deadLetter": "The source of a dead letter, and why it was dead-lettered.",
    "Nack.deadLetter": "Dead-letter the message at once.",
    "untried": "The message was not processed: this is not a failure, and the receive does not count.",
    "lastFailure": "How earlier attempts in this queue failed.",
    "reason": "Reason of the last failure, as the consumer reported it.",
    "errorClass": "Error class of the last failure, as the consumer reported it.",
    "RedriveFilter.errorClass": "Only messages whose last failure had this error class.",
    "firstFailureMs": "Time of the first failed attempt.",
    "lastFailureMs": "Time of the last failed attempt.",
    "attempts": "Number of receives.",
    # --- peeking
    "state": "`DELAYED`, `VISIBLE`, `IN_FLIGHT`, `OWED` or `DEAD`.",
    "Job.state": (
        "State of the job. `PAUSED` jobs can be resumed; `COMPLETED`, `CANCELLED` and `FAILED` jobs have ended."
    ),
    "untilMs": "End of the delay or of the lease.",
    "holder": "Consumer that holds the message.",
    "bodyBytes": "Size of the body in bytes.",
    "expiresAtMs": "Time when the message expires.",
    "problem": "Why the body could not be read.",
    "nextAfter": "`after` of the next page; absent on the last page.",
    "why": "One sentence: why the message is not being delivered now, or that it waits for a receive.",
    "complete": "Whether all messages were examined; otherwise `nextAfter` continues.",
    # --- single messages
    "MessageDetail.shard": "Number of the shard that has the message.",
    "MessageDetail.state": "`DELAYED`, `VISIBLE`, `IN_FLIGHT`, `OWED`, `DEAD`, or `DELETED`: it is only in the log.",
    "where": "One sentence: where the message is, or what became of it.",
    "history": "What happened to the message, oldest first, as far as the log is retained.",
    "historyComplete": "Whether the history begins when the message was sent, and nothing is left out.",
    "historyNote": "Why the history is not complete.",
    "movedAs": "Id of the message in the queue that it was moved to, if known.",
    "MessageEvent.atMs": "Time of the event.",
    "event": "What happened.",
    "MessageEvent.queue": "The queue in which it happened.",
    "MessageEvent.holder": "The consumer that got the message.",
    "MessageEvent.reason": "The reason of a failure, as the consumer reported it, or why the message was moved.",
    "MessageEvent.errorClass": "The error class of a failure, as the consumer reported it.",
    "MessageEvent.receiveCount": "How often the message had been received then.",
    "MessageEvent.untilMs": "End of the lease or of the delay.",
    "toQueue": "The queue that the message is moved to.",
    # --- jobs
    "targetQueue": "The queue to move the messages to; default: each message's source queue.",
    "maxMessagesPerSecond": "Rate in messages per second; default 10.",
    "rampSeconds": "Time until the full rate is reached; default 10 for rates above 100, otherwise 0.",
    "filter": "Which messages to move; default: all.",
    "edit": "How to change the messages before they are moved.",
    "dryRun": "Only count the messages, and show the first ones as they would be moved.",
    "pauseWhenDyingShare": (
        "The job pauses when more than this share of the recently moved messages is dead-lettered again; 1: never."
    ),
    "reasonContains": "Only messages whose last failure reason contains this text.",
    "minAgeSeconds": "Only messages that were sent at least this many seconds ago.",
    "maxAgeSeconds": "Only messages that were sent at most this many seconds ago.",
    "bodyContains": "Only messages whose body, as it was written, contains this text.",
    "messageIds": "Only these messages, by their `currentId`. Messages that no longer exist are counted in `notFound`.",
    "setAttributes": "Attributes to add or change.",
    "removeAttributes": "Attributes to remove.",
    "replaceBody": "The new body.",
    "replaceText": "Texts to replace in the body; binary bodies are not changed.",
    "find": "The text to find.",
    "with": "The replacement.",
    "jobId": "Id of the job.",
    "jobs": "The jobs.",
    "sourceQueue": "The source queue of the job.",
    "Job.why": "Why the job is waiting, paused or failed.",
    "currentRate": "Current rate limit, in messages per second.",
    "startedAtMs": "Time when the job was started.",
    "endedAtMs": "Time when the job ended.",
    "examined": "Number of messages examined.",
    "matched": "Number of messages that the filter matched.",
    "moved": "Number of messages moved.",
    "remaining": "Number of messages not examined yet.",
    "diedAgain": "Number of moved messages that were dead-lettered again.",
    "notFound": "Number of messages named in `messageIds` that were no longer in the queue.",
    "sample": "The first messages that a dry run matched, as they would be moved.",
    # --- access
    "keys": "The access keys.",
    "keyId": "Id of the access key.",
    "KeySpec.name": "A name that tells people what the key is for: at most 64 printable characters.",
    "role": (
        "`read`: only operations that change nothing. `write`: everything that concerns queues and messages. `admin`: "
        "also changes of the server itself; only for keys of the server's own account."
    ),
    "KeySpec.account": "Account of the key: twelve digits. Default: the server's own account.",
    "expiresInSeconds": "Time after which the key expires; default: never.",
    "KeySpec.expiresAtMs": "Time when the key expires; absent: never.",
    "KeySpec.createdAtMs": "Time when the key was created.",
    "disabled": "Whether the key is disabled: requests signed with it are refused.",
    "KeySpec.expired": "Whether the key has expired: requests signed with it are refused.",
    "secret": "Secret of the key. The server never shows it again.",
    "CallerInfo.account": "Account for which the request acts.",
    "CallerInfo.key": "Id of the access key that signed the request; empty if the request has none.",
    "CallerInfo.name": "Name of that key, or `admin token`.",
    "operator": "Whether the caller may use the operations that concern the whole server; changes also need the role "
    "`admin`.",
    # --- configuration
    "settings": "All settings of the server.",
    "SettingValue.name": "Name of the setting, as in the configuration file.",
    "flag": "Its flag of `baton serve`.",
    "variable": "Its environment variable.",
    "SettingValue.value": "The value in effect; passwords, tokens and secrets are shown as `***`.",
    "default": "The default; null if it depends on other settings.",
    "origin": "Where the value comes from: `default`, `file`, `environment` or `flag`.",
    "file": "The configuration file, if the value comes from there.",
    "doc": "What the setting means.",
    # --- definitions
    "version": "Version of the format: 1.",
    "Definitions.account": "The account that the definitions are from.",
    "Definitions.queues": "The queues. Fields that are absent get their default when a queue is created, and are not "
    "changed in a queue that exists.",
    "QueueDefinition.attributes": "SQS attributes that have no field here, such as `Policy`, by name.",
    "created": "Names of the queues that were created.",
    "changed": "The queues that were changed.",
    "unchanged": "Number of queues that were already as defined.",
    "fields": "The settings that were changed.",
    "problems": "What is wrong with the definitions, or what failed; empty if all is well.",
    "applied": "Whether anything was changed. False for a dry run, and if the definitions have problems.",
    # --- backups
    "backup": "Id of the backup, while it is in progress.",
    "BackupPoint.atMs": "Time of the point: everything that was committed before it is in the backup.",
    "release": "Version of Baton that the server runs.",
    "cluster": "Id of the data, in hexadecimal: every frame contains it.",
    "BackupPoint.account": "The server's own account.",
    "heldSeconds": "The frames are kept until nobody has read from the backup for this long.",
    "BackupPoint.shards": "The logs of the shards.",
    "catalog": "The log of the catalog: accounts, keys, queues.",
    "digest": "Digest of the last frame before `nextFrame`, in hexadecimal.",
    "LogCut.shard": "Number of the shard; 65535 is the catalog.",
    "LogCut.nextFrame": "The frame before which the backup ends.",
    "LogCut.bytes": "Approximate size of the frames.",
    # --- problems
    "type": "URI of the problem type: `/problems/` and the code.",
    "title": "A short description of the problem type.",
    "status": "The HTTP status.",
    "detail": "What happened, and what to do.",
    "code": "Stable error code, for programs.",
    "retryable": "Whether a retry of the same request can succeed.",
}
_SETTINGS = {camel(row.member): row.meaning for row in REST_ATTRIBUTES}
MEANINGS = {
    **_WRITTEN,
    **{f"QueueSpec.{name}" if name in _WRITTEN else name: text for name, text in _SETTINGS.items()},
}
_LIKE = {
    "QueueChanges": "QueueSpec",
    "Queue": "QueueSpec",
    "MessageDetail": "Peeked",
    "NackEntry": "Nack",
    "ChangeVisibilityEntry": "ChangeVisibility",
    "Key": "KeySpec",
    "NewKey": "KeySpec",
    "QueueDefinition": "QueueSpec",
    "ExportedDefinitions": "Definitions",
}


def meaning(shape: str, field: str) -> str:
    for name in (shape, _LIKE.get(shape, shape)):
        if f"{name}.{field}" in MEANINGS:
            return MEANINGS[f"{name}.{field}"]
    return MEANINGS[field]
