"""The tests of REST over two processes: each request at one that chance picks."""

from tests.rest.test_queues import *  # noqa: F403

del test_rates_are_known_after_a_second_look  # noqa: F821 - which must be at the same process
