"""The description of the fields of topics and subscriptions, see field_docs.py."""

from __future__ import annotations

TOPIC_MEANINGS = {
    "TopicSpec.name": (
        "Name of the topic: letters, digits, hyphens and underscores, at most 256 characters. FIFO topics may end in "
        "`.fifo`."
    ),
    "TopicSpec.mode": "`STANDARD`, or `FIFO`: each subscribed FIFO queue gets the messages of a group in order.",
    "Topic.arn": "Amazon Resource Name of the topic, for SNS clients.",
    "Topic.createdAtMs": "Time when the topic was created.",
    "Topic.modifiedAtMs": "Time when the topic's settings were last changed.",
    "displayName": "Name of the topic for people.",
    "TopicSpec.retentionSeconds": (
        "How long a copy waits for a queue that is full or paused, before it is dropped; default: 345,600 (4 days)."
    ),
    "contentBasedDeduplication": (
        "FIFO topics: a message without a `deduplicationKey` gets the SHA-256 of its body as its key."
    ),
    "Topic.subscriptions": "Number of subscriptions.",
    "waitingCopies": (
        "Number of copies that wait in the topic, because their queue is full, paused or cannot be reached. Absent if "
        "there are none, if the topic's shard cannot be asked, and in lists."
    ),
    "oldestWaitingSeconds": "Age of the oldest of those copies.",
    "topics": "The topics.",
    "subscriptionId": "Id of the subscription: the last part of its ARN.",
    "Subscription.topic": "Name of the topic.",
    "Subscription.arn": "Amazon Resource Name of the subscription, for SNS clients.",
    "queueArn": "Amazon Resource Name of the subscribed queue.",
    "Subscription.createdAtMs": "Time when the queue was subscribed.",
    "SubscriptionSpec.queue": "Name of the subscribed queue.",
    "rawDelivery": (
        "Whether the queue gets the message as it was published, with its attributes; otherwise it gets the JSON "
        "envelope of SNS with the message in it. Default in REST: true. Subscriptions of SNS clients: false."
    ),
    "filterPolicy": "Which messages the queue gets, in the form of SNS's filter policies; default: all.",
    "filterPolicyScope": (
        "What the filter policy compares: `MessageAttributes` (default), or the keys of a JSON body, `MessageBody`."
    ),
    "SubscriptionSpec.deadLetterQueue": (
        "Queue for copies that the subscribed queue refuses, because it is deleted, full or paused."
    ),
    "queueMissing": "Whether the subscribed queue has been deleted.",
    "subscriptions": "The subscriptions.",
    "MatchSpec.body": "The body of the message: any JSON value.",
    "Matches.subscriptions": "The subscriptions of the topic; those that would get the message come first.",
    "Matches.matched": "Number of subscriptions that would get the message.",
    "Match.queue": "Name of the subscribed queue.",
    "matches": "Whether the queue would get the message.",
    "Match.reason": "Why the queue would not get the message.",
    "leftOut": "Number of subscriptions that are not in this answer.",
}
TOPICS_LIKE = {
    "Topic": "TopicSpec",
    "TopicChanges": "TopicSpec",
    "TopicDefinition": "TopicSpec",
    "SubscriptionDefinition": "SubscriptionSpec",
    "Subscription": "SubscriptionSpec",
    "SubscriptionChanges": "SubscriptionSpec",
}
