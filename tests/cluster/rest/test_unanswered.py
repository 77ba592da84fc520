"""Receives that cannot be answered, on a cluster: each request at a node that chance picks."""

from tests.rest.test_unanswered import *  # noqa: F403
