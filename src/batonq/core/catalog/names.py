"""Queue names and texts of the control plane: which are valid."""

from __future__ import annotations

from batonq.errors import InvalidInput

NAME_LENGTH_MAX = 80
FIFO_SUFFIX = ".fifo"
ACCOUNT_DIGITS = 12

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_BAD_NAME = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_BAD_FIFO_NAME = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length."
)


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


def check_account(account: str) -> None:
    """Raise InvalidInput unless `account` can be the id of an account."""
    if not is_word(account, 64):
        raise InvalidInput(f"{account[:64]!r} is not a valid account id: use twelve digits.")


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
