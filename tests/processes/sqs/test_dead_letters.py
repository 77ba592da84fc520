"""The tests of SQS over two processes: each request at one that chance picks."""

from tests.api.test_dead_letters import *  # noqa: F403

# These count on one shard: on the place of the queues, and on a move that is done when the receive is.
del test_the_past_of_a_dead_letter_through_a_redrive  # noqa: F821
del test_it_moves_at_the_receive_that_would_exceed_the_maximum  # noqa: F821
