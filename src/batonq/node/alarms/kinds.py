"""Every kind of alarm, one row each: what raises it, how long that must last, how severe it is, and what to do.

The rules, the REST API, the reference and the runbook are derived from these rows. A kind's name is stable: it is in
alarm ids, in metrics, and in the runbook's anchors.
"""

from __future__ import annotations

from typing import NamedTuple

INFO = "info"
WARNING = "warning"
CRITICAL = "critical"
SEVERITIES = (INFO, WARNING, CRITICAL)
RUNBOOK = "docs/how-to/runbook.md"


class AlarmKind(NamedTuple):
    name: str
    severity: str
    raised: str  # what raises it
    remedy: str  # {queue}: the queue's name
    escalates: str = ""  # what makes it critical
    raise_after_s: float = 0.0  # how long the condition must hold before the alarm is raised
    clear_after_s: float = 0.0  # how long it must be over before the alarm ends
    about: str = "server"  # queue, shard, node or server

    @property
    def runbook(self) -> str:
        """The page and anchor that say what to do."""
        return f"{RUNBOOK}#{self.name}"

    def remedy_for(self, queue: str) -> str:
        return self.remedy.replace("{queue}", queue or "the queue")


_ROWS = (
    # --- queues
    AlarmKind(
        "dead-letters",
        WARNING,
        "A dead-letter queue has messages.",
        "See why they failed (`baton dlq list {queue}`), fix the cause, then redrive or delete them.",
        raise_after_s=60,
        clear_after_s=30,
        about="queue",
    ),
    AlarmKind(
        "dead-messages",
        WARNING,
        "Messages have used up their receives, and the queue has no dead-letter queue.",
        "Look at them (`baton peek {queue}`), give the queue a dead-letter queue, then redrive or delete them.",
        raise_after_s=60,
        clear_after_s=30,
        about="queue",
    ),
    AlarmKind(
        "sla-age",
        WARNING,
        "The queue's oldest message is older than 80% of the queue's SLA. It ends below 70%.",
        "Add consumers, or find out why the present ones are slow (`baton worker list`).",
        escalates="The oldest message is older than the SLA.",
        raise_after_s=10,
        clear_after_s=60,
        about="queue",
    ),
    AlarmKind(
        "retention-age",
        WARNING,
        "The queue's oldest message is older than 80% of the queue's retention. It ends below 75%.",
        "Consume the queue, or raise its retention before messages expire.",
        escalates="The oldest message is older than 95% of the retention.",
        raise_after_s=60,
        clear_after_s=60,
        about="queue",
    ),
    AlarmKind(
        "depth",
        WARNING,
        "More messages wait than the queue's `alarmDepth`, or than `--alarm-depth`. It ends below 80% of that.",
        "Add consumers, or slow the producers down. If the depth is normal, raise the queue's alarmDepth.",
        raise_after_s=60,
        clear_after_s=60,
        about="queue",
    ),
    AlarmKind(
        "depth-unusual",
        WARNING,
        "More messages wait than `--alarm-unusual-factor` times the usual number, and at least 100. The usual number "
        "is a moving average over hours; it needs 6 hours of history. It ends below 75% of the mark.",
        "Compare the queue's send and acknowledge rates: either producers send more, or consumers have slowed down.",
        raise_after_s=300,
        clear_after_s=120,
        about="queue",
    ),
    AlarmKind(
        "failing",
        WARNING,
        "In a minute, more than half of the receives ended with the message returned, and at least one per second. It "
        "ends below 40%, or below one in two seconds.",
        "Find out why the consumers of {queue} fail. Give the queue a retry policy, so that retries wait longer and "
        "longer, and a dead-letter queue.",
        clear_after_s=90,
        about="queue",
    ),
    AlarmKind(
        "no-consumer",
        WARNING,
        "Messages wait, and no consumer has received or polled since the server started. The time is set by "
        "`--alarm-no-consumer-s`.",
        "Start a consumer for {queue}, or delete the messages.",
        raise_after_s=300,
        clear_after_s=10,
        about="queue",
    ),
    AlarmKind(
        "consumer-gone",
        WARNING,
        "Messages wait, and the consumers that the queue had no longer receive or poll.",
        "Restart the consumers of {queue}; their log says why they stopped.",
        raise_after_s=120,
        clear_after_s=10,
        about="queue",
    ),
    AlarmKind(
        "paused",
        WARNING,
        "The queue's delivery or its sends have been paused for an hour.",
        "Resume the queue (`baton queue resume {queue}`), or acknowledge the alarm if it is meant to stay paused.",
        raise_after_s=3_600,
        clear_after_s=10,
        about="queue",
    ),
    AlarmKind(
        "dead-letter-refused",
        WARNING,
        "A dead-letter queue refuses dead letters: it is full, was deleted, or is of another type.",
        "Mend the dead-letter queue of {queue}: create it again, raise its limits, or choose another one.",
        about="queue",
    ),
    AlarmKind(
        "copies-dropped",
        WARNING,
        "A topic drops messages because a subscribed queue was deleted or is of another type.",
        "Create the queue again, remove the subscription from topic {queue}, or give it a dead-letter queue.",
        about="queue",
    ),
    AlarmKind(
        "schedule-waiting",
        WARNING,
        "A schedule that is due cannot fire for a minute or longer: its queue is full, or its time zone is unknown.",
        "See why it waits (`baton schedule list`). Consume {queue}, raise its limits, or change the schedule.",
        about="queue",
    ),
    AlarmKind(
        "message-unreadable",
        CRITICAL,
        "The body of a stored message cannot be read.",
        "Check the disk, then verify the log (`baton log verify`). Restore a backup if the log is damaged.",
        about="queue",
    ),
    AlarmKind(
        "payload-store",
        CRITICAL,
        "The payload store, which has the bodies of large messages, cannot be read or written.",
        "Check that the store is reachable, has room, and that the server's credentials for it are valid.",
    ),
    # --- shards
    AlarmKind(
        "shard-stopped",
        CRITICAL,
        "A shard stopped because of an error. The server tries to reopen it.",
        "Read the error in the alarm and in the server's log. Check the disk, or the shared log.",
        about="shard",
    ),
    AlarmKind(
        "shard-unserved",
        CRITICAL,
        "No node or process serves a shard.",
        "Check that all nodes run and reach the shared log (`baton cluster status`).",
        raise_after_s=15,
        clear_after_s=5,
        about="shard",
    ),
    AlarmKind(
        "log-stalled",
        WARNING,
        "A shard's log makes no progress.",
        "Check that the shared log is up, has a leader and has room.",
        about="shard",
    ),
    AlarmKind(
        "following-stopped",
        CRITICAL,
        "A node cannot follow a shard's log.",
        "Check the node's disk and its connection to the shared log; restart the node if it stays.",
        about="shard",
    ),
    AlarmKind(
        "channel-stopped",
        WARNING,
        "A shard does not accept messages from another shard: dead letters, redrives and copies wait.",
        "Check the shard that is named. If the alarm is critical, report it with the server's log.",
        escalates="The channel is damaged.",
        about="shard",
    ),
    AlarmKind(
        "ownership-flapping",
        WARNING,
        "A shard has changed its owner four times or more in ten minutes. It ends below two times.",
        "Find the node that loses its leases: a slow network, a paused process, or an overloaded machine.",
        clear_after_s=60,
        about="shard",
    ),
    AlarmKind(
        "follower-lag",
        WARNING,
        "A node is more than 1,000 frames behind a shard's owner. It ends below 100. A failover to it takes longer.",
        "Check the load, the disk and the network of the node that is named.",
        raise_after_s=30,
        clear_after_s=10,
        about="node",
    ),
    AlarmKind(
        "disk-full",
        CRITICAL,
        "The disk is so full that sends are refused.",
        "Free disk space, or delete messages. Receiving and deleting still work.",
        about="shard",
    ),
    AlarmKind(
        "archive-failing",
        WARNING,
        "Log segments cannot be copied to the archive.",
        "Check the archive's address, its credentials and its room (`--archive`).",
        about="shard",
    ),
    AlarmKind(
        "archive-behind",
        CRITICAL,
        "Log was deleted before it could be archived.",
        "Mend the archive; the missing frames are named in the alarm. Consider a larger --archive-backlog-bytes.",
        about="shard",
    ),
    # --- nodes and the server
    AlarmKind(
        "disk-space",
        WARNING,
        "The data directory's disk is 80% full, in development 95% (`--alarm-disk-share`). It ends 2% below.",
        "Free disk space, move the data directory, or shorten what is kept (--history-hours, --history-bytes).",
        escalates="The disk is 90% full, or halfway from the mark to full if that is more.",
        clear_after_s=30,
        about="node",
    ),
    AlarmKind(
        "node-silent",
        WARNING,
        "A node or process of the server does not answer, or a node has left the cluster without being drained. It "
        "ends when the node is back, or after an hour.",
        "Check that the node runs, and that the nodes reach each other at their --advertise addresses.",
        raise_after_s=30,
        clear_after_s=10,
        about="node",
    ),
    AlarmKind(
        "catalog-stopped",
        CRITICAL,
        "The catalog of queues and keys stopped because of an error. The server tries to reopen it.",
        "Read the error in the alarm and in the server's log. Check the disk, or the shared log.",
    ),
    AlarmKind(
        "lease-store",
        WARNING,
        "The node cannot read the ownership leases of the cluster.",
        "Check that the shared log (--log-url) is up and reachable from the node.",
        about="node",
    ),
    AlarmKind(
        "member-refused",
        CRITICAL,
        "A node has announced itself that has another cluster secret, belongs to another cluster, or cannot read the "
        "log format in use. The other nodes ignore it.",
        "Stop the node that is named. Correct its --cluster-secret-file or --log-url, or upgrade it.",
        about="node",
    ),
    AlarmKind(
        "clock-off",
        CRITICAL,
        "The node's clock differs from the other nodes' clocks, so the node takes no shards.",
        "Set the node's clock; run NTP or chrony on every node.",
        about="node",
    ),
    AlarmKind(
        "certificate-expiry",
        WARNING,
        "The server's certificate expires within 14 days, or within a quarter of its validity if that is shorter.",
        "Replace the certificate's files. The server loads them by itself.",
        escalates="It expires within 3 days, or has expired.",
        about="node",
    ),
    AlarmKind(
        "certificate-refused",
        CRITICAL,
        "A new certificate is not valid, so the old one stays in use.",
        "Check the files of --tls-cert, --tls-key and --peer-ca, and replace them.",
        about="node",
    ),
    AlarmKind(
        "webhook-failing",
        WARNING,
        "An alarm could not be delivered to a webhook.",
        "Check the receiver's address and certificate, then try again: `baton alarms test`.",
        about="node",
    ),
    AlarmKind("test", INFO, "A test of the webhooks; it is never active.", "Nothing: this was a test."),
)
KINDS: dict[str, AlarmKind] = {row.name: row for row in _ROWS}

_LEVELS = {
    "info": INFO,
    "low": INFO,
    "notice": INFO,
    "warning": WARNING,
    "warn": WARNING,
    "medium": WARNING,
    "critical": CRITICAL,
    "error": CRITICAL,
    "fatal": CRITICAL,
    "high": CRITICAL,
    "page": CRITICAL,
}


def severity_of(kind: AlarmKind, level: int, word: str = "") -> str:
    """The severity of an alarm: what the queue's attribute says if that is a severity, otherwise the kind's own, and
    critical from level 2. `word` is the attribute.
    """
    chosen = _LEVELS.get(word.lower())
    if chosen is not None:
        return chosen
    return CRITICAL if level > 1 else kind.severity


def label_of(word: str) -> str:
    """The queue's attribute, if it is a word of the user's own and not a severity."""
    return "" if word.lower() in _LEVELS else word
