"""The tests of REST with queues on several shards, each request at a process that chance picks."""

from tests.rest.test_replays import *  # noqa: F403
