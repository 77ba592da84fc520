"""Tags of queues and topics: which are valid."""

from __future__ import annotations

from collections.abc import Mapping

from batonq.core.catalog.names import is_text
from batonq.errors import InvalidInput

TAGS_MAX = 50
TAG_KEY_LENGTH_MAX = 128
TAG_VALUE_LENGTH_MAX = 256


def check_tags(owner: str, tags: Mapping[str, str]) -> None:
    """Raise InvalidInput unless these can be the tags of `owner`, for example "queue work"."""
    if len(tags) > TAGS_MAX:
        raise InvalidInput(f"Too many tags added for {owner}. The maximum is {TAGS_MAX}.")
    for key, value in tags.items():
        if not key or not is_text(key, 4 * TAG_KEY_LENGTH_MAX) or len(key) > TAG_KEY_LENGTH_MAX:
            raise InvalidInput(f"The key of a tag must be 1 to {TAG_KEY_LENGTH_MAX} characters long.")
        if not is_text(value, 4 * TAG_VALUE_LENGTH_MAX) or len(value) > TAG_VALUE_LENGTH_MAX:
            raise InvalidInput(f"The value of a tag can be at most {TAG_VALUE_LENGTH_MAX} characters long.")
