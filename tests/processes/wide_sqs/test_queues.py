"""The tests of SQS with queues on several shards, each request at a process that chance picks.

Left out is what counts on a spread that was not set.
"""

from tests.api.test_queues import *  # noqa: F403

del test_attributes_of_a_new_queue  # noqa: F821
