"""The part of SNS's API that fans out to queues: topics, subscriptions with the protocol `sqs`, and publishing."""

from batonq.api.sns.app import SnsApp

__all__ = ["SnsApp"]
