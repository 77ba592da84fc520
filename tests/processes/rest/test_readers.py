"""The tests of REST over two processes: each request at one that chance picks."""

from tests.rest.test_readers import *  # noqa: F403
