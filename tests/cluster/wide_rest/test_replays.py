"""The tests of REST with queues on several shards, each request at a node that chance picks."""

from tests.rest.test_replays import *  # noqa: F403
