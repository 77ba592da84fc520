"""The tests of SQS over two processes: each request at one that chance picks."""

from tests.api.test_messages import *  # noqa: F403
