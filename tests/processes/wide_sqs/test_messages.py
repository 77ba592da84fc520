"""The tests of SQS with queues on several shards, each request at a process that chance picks.

Left out is what holds on each shard for itself (shares of a limit, fairness, the order of arrival), and what is about
one node's catalog.
"""

from tests.api.test_messages import *  # noqa: F403

del test_in_flight_is_limited, test_tenants_share_a_standard_queue_fairly  # noqa: F821
del test_bodies_come_back_as_they_were, test_a_catalog_that_does_not_answer  # noqa: F821
