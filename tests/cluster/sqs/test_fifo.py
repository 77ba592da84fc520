"""The tests of SQS on a cluster: each request at a node that chance picks."""

from tests.api.test_fifo import *  # noqa: F403
