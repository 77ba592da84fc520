"""The exit codes of every command, and the errors that only the command line has."""

from __future__ import annotations

from batonq.errors import (
    AccessDenied,
    BatonError,
    InvalidInput,
    JobNotFound,
    MessageGone,
    NotFound,
    QueueDoesNotExist,
    TopicDoesNotExist,
    Unavailable,
)

DONE = 0
FAILED = 1
WRONG_USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
REFUSED = 5
PROBLEMS_FOUND = 6
INTERRUPTED = 130

# For the reference page: what each code means.
MEANINGS = {
    DONE: "The command did what it was asked to do.",
    FAILED: "The command failed, or the job that it waited for was paused or cancelled. The reason is on standard "
    "error.",
    WRONG_USAGE: "The command line is not valid. Nothing was changed.",
    NOT_FOUND: "The queue, topic, message, job, key or alarm does not exist.",
    UNREACHABLE: "No Baton server answers at the URL.",
    REFUSED: "The server refused the credentials.",
    PROBLEMS_FOUND: "A check found problems: `doctor`, `status`, `cluster status`, or `import --dry-run`.",
    INTERRUPTED: "The command was interrupted with Ctrl-C.",
}


class WrongUsage(InvalidInput):
    """The command line is not valid."""


class Unreachable(Unavailable):
    """No Baton server answers at the URL."""


def exit_code_of(problem: BatonError) -> int:
    if isinstance(problem, WrongUsage):
        return WRONG_USAGE
    if isinstance(problem, Unreachable):
        return UNREACHABLE
    if isinstance(problem, AccessDenied):
        return REFUSED
    if isinstance(problem, (QueueDoesNotExist, TopicDoesNotExist, JobNotFound, MessageGone, NotFound)):
        return NOT_FOUND
    return FAILED
