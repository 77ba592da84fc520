"""Queue names, ARNs and texts of the control plane: which are valid, and which queue an ARN names.

Baton has a single region of its own, so the partition and region of an ARN are accepted as the client sent them and
never compared. The account and the name identify the queue.
"""

from __future__ import annotations

from typing import NamedTuple

from batonq.errors import InvalidInput

NAME_LENGTH_MAX = 80
FIFO_SUFFIX = ".fifo"
DEFAULT_REGION = "us-east-1"

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_BAD_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_BAD_FIFO_NAME = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length."
)


class QueueName(NamedTuple):
    """The queue that an ARN names."""

    account: str
    name: str


def is_word(text: str, length_max: int) -> bool:
    """Whether the text has 1 to `length_max` letters, digits, hyphens and underscores, and nothing else."""
    return 0 < len(text) <= length_max and _WORD.issuperset(text)


def is_text(text: str, bytes_max: int) -> bool:
    """Whether the text has at most `bytes_max` bytes and only characters that every protocol can carry, which are
    those of XML.
    """
    if len(text) > bytes_max or not all(
        " " <= char <= "\ud7ff" or "\ue000" <= char <= "\ufffd" or char > "\uffff" or char in "\t\n\r" for char in text
    ):
        return False
    return len(text.encode()) <= bytes_max


def check_queue_name(name: str, *, fifo: bool, any_name: bool = False) -> None:
    """Raise InvalidInput unless `name` is valid for a queue of this type. With `any_name` a FIFO queue needs no
    suffix.
    """
    if fifo and not (any_name and is_word(name, NAME_LENGTH_MAX)):
        stem = name.removesuffix(FIFO_SUFFIX)
        if stem == name or len(name) > NAME_LENGTH_MAX or not is_word(stem, NAME_LENGTH_MAX):
            raise InvalidInput(_BAD_FIFO_NAME)
    elif not is_word(name, NAME_LENGTH_MAX):
        raise InvalidInput(_BAD_NAME)


def queue_arn(account: str, name: str, region: str = DEFAULT_REGION) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


def parse_queue_arn(arn: str) -> QueueName | None:
    """The queue that an ARN names; None if it is not the ARN of a queue."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[0] != "arn" or not parts[1] or parts[2] != "sqs" or not parts[4] or not parts[5]:
        return None
    return QueueName(parts[4], parts[5])
