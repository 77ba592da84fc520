"""The tests of REST with queues on several shards, each request at a process that chance picks."""

from tests.rest.test_pausing import *  # noqa: F403

del test_a_message_tells_how_many_of_higher_priority_there_are  # noqa: F821 - each shard counts its own
