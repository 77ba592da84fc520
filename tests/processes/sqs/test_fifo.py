"""The tests of SQS over two processes: each request at one that chance picks."""

from tests.api.test_fifo import *  # noqa: F403
