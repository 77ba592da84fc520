"""The tests of REST with queues on several shards, each request at a process that chance picks.

Left out is what counts on two looks at the same process.
"""

from tests.rest.test_queues import *  # noqa: F403

del test_rates_are_known_after_a_second_look  # noqa: F821
