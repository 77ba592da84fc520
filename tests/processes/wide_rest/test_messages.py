"""The tests of REST with queues on several shards, each request at a process that chance picks.

Left out is what holds on each shard for itself: shares of a limit, and the order of arrival.
"""

from tests.rest.test_messages import *  # noqa: F403

del test_a_batch_has_a_key_too_and_sends_only_what_is_missing, test_peek_shows_messages_and_leases_none  # noqa: F821
del test_five_hundred_of_all_kinds  # noqa: F821
