"""The tests of SQS over two processes: each request at one that chance picks."""

from tests.api.test_extensions import *  # noqa: F403

del test_nack_to_the_dead_letters  # noqa: F821 - which counts on a move that is done when the nack is
