"""The tests of SQS with queues on several shards, each request at a process that chance picks.

Left out is what looks at where each queue lies, and what wants all that there is from one receive.
"""

from tests.api.test_dead_letters import *  # noqa: F403

del test_the_past_of_a_dead_letter_through_a_redrive  # noqa: F821
del test_what_died_in_its_own_queue_can_be_moved_back  # noqa: F821
del test_what_died_can_be_moved_to_another_queue_and_what_waits_stays  # noqa: F821
