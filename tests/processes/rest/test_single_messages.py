"""The tests of REST over two processes: each request at one that chance picks."""

from tests.rest.test_single_messages import *  # noqa: F403
