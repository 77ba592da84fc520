"""The tests of SQS over two processes: each request at one that chance picks."""

from tests.api.test_queues import *  # noqa: F403
