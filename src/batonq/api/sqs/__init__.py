"""The SQS API, in AWS JSON 1.0 and in query/XML."""

from batonq.api.sqs.app import SqsApp
from batonq.api.sqs.service import SqsSettings

__all__ = ["SqsApp", "SqsSettings"]
