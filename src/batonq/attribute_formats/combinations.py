"""Attributes that are only stored and returned, and that depend on each other as in SQS: encryption, throughput."""

from __future__ import annotations

from collections.abc import Mapping

from batonq.errors import InvalidAttributeName, InvalidAttributeValue
from batonq.queue_attributes import KMS_REUSE_DEFAULT


def settle_encryption(changes: Mapping[str, str], result: dict[str, str]) -> None:
    """A queue has one kind of encryption: remove from `result` the one that these changes replace."""
    managed = changes.get("SqsManagedSseEnabled") == "true"
    if managed and changes.get("KmsMasterKeyId"):
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    if managed:
        result["KmsMasterKeyId"] = ""
    elif changes.get("KmsMasterKeyId"):
        result["SqsManagedSseEnabled"] = "false"
    if not result.get("KmsMasterKeyId") and (managed or "KmsMasterKeyId" in changes):
        # The reuse period belongs to the removed key. A period that is set in the same change stays, unless it is
        # the default, which tools use to remove it.
        period = changes.get("KmsDataKeyReusePeriodSeconds", "")
        result["KmsDataKeyReusePeriodSeconds"] = "" if period == KMS_REUSE_DEFAULT else period


def add_key_defaults(attributes: dict[str, str]) -> None:
    """Add the default reuse period to the attributes of a queue that has a KMS key."""
    if attributes.get("KmsMasterKeyId"):
        attributes.setdefault("KmsDataKeyReusePeriodSeconds", KMS_REUSE_DEFAULT)


def check_throughput(attributes: Mapping[str, str]) -> None:
    if (
        attributes.get("FifoThroughputLimit") == "perMessageGroupId"
        and attributes.get("DeduplicationScope") != "messageGroup"
    ):
        raise InvalidAttributeValue(
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup"
        )
