"""The core does not use the words of SQS: queue attributes, actions and error codes. Each interface has its own words,
and attribute names that the catalog stores are declared in queue_attributes.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import batonq
from batonq import errors
from batonq.api.sqs import errors as sqs_errors
from batonq.api.sqs.operations.table import OPERATIONS
from batonq.queue_attributes import ATTRIBUTES

CORE = Path(batonq.__file__).parent / "core"
OWN = {name for name in vars(errors) if name[0].isupper()} | {"Policy"}  # words that Baton itself uses
ERRORS = {word for kind in vars(sqs_errors).values() if isinstance(kind, sqs_errors.Kind) for word in kind[:2]}
MORE = {"SQS", "AWS", "SimpleQueueService", "ReceiptHandle", "MessageGroupId", "MessageDeduplicationId", "QueueUrl"}
WORDS = (ATTRIBUTES.keys() | ERRORS | set(OPERATIONS) | MORE) - OWN
SQS_WORD = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, sorted(WORDS, key=len, reverse=True)))})(?!\w)")


def texts(source: str) -> Iterator[str]:
    """The string literals of a module, without docstrings."""
    tree = ast.parse(source)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


def words_of_sqs(source: str) -> set[str]:
    return {word for text in texts(source) for word in SQS_WORD.findall(text)}


def test_the_core_has_no_words_of_sqs() -> None:
    paths = list(CORE.rglob("*.py"))
    assert len(paths) > 30
    found = {path.relative_to(CORE).as_posix(): words_of_sqs(path.read_text()) for path in paths}
    assert {path: words for path, words in found.items() if words} == {}


def test_such_a_word_would_be_found() -> None:
    assert {"RedrivePolicy", "Baton.Spread", "SendMessage", "InvalidParameterValue"} <= WORDS
    assert words_of_sqs('raise InvalidInput(f"{x} for parameter VisibilityTimeout")') == {"VisibilityTimeout"}
    assert words_of_sqs('values.get("Baton.Spread")') == {"Baton.Spread"}
    assert words_of_sqs('"""As in SQS."""\nraise QueueDoesNotExist') == set()
