"""The tests of REST over two processes: each request at one that chance picks."""

from tests.rest.test_leases import *  # noqa: F403

del test_a_batch_of_nacks_has_a_result_for_each  # noqa: F821 - which counts on a move that is done when the nack is
