"""The tests of REST on a cluster: each request at a node that chance picks."""

from tests.rest.test_counters import *  # noqa: F403
