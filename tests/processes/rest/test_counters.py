"""The tests of REST over two processes: each request at one that chance picks."""

from tests.rest.test_counters import *  # noqa: F403
