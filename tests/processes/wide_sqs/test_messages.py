"""The tests of SQS with queues on several shards, each request at a process that chance picks.

Left out is what holds on each shard for itself: shares of a limit, and fairness.
"""

from tests.api.test_messages import *  # noqa: F403

del test_in_flight_is_limited, test_tenants_share_a_standard_queue_fairly  # noqa: F821
