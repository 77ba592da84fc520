"""The tests of SQS with queues on several shards, each request at a node that chance picks.

Left out is what counts on a spread that was not set, or on the order of several shards.
"""

from tests.api.test_extensions import *  # noqa: F403

del test_our_attributes_are_shown_only_when_they_are_asked_for  # noqa: F821
del test_the_holder_of_a_lease  # noqa: F821
del test_priority  # noqa: F821
