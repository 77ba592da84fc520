"""The tests of REST on a cluster: each request at a node that chance picks."""

from tests.rest.test_queues import *  # noqa: F403

del test_rates_are_known_after_a_second_look  # noqa: F821 - which must be at the same node
