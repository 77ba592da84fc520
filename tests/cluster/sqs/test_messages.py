"""The tests of SQS on a cluster: each request at a node that chance picks.

Left out is what is about one node's catalog.
"""

from tests.api.test_messages import *  # noqa: F403

del test_a_catalog_that_does_not_answer  # noqa: F821
