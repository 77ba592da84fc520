"""Events that are delivered to other people's servers, which are slow, broken or gone at times.

    publish.py ──▶ hooks-steady ──┐                       ┌──▶ receiver (checks the signature,
               ──▶ hooks-flaky  ──┼── one worker over ────┼──▶ receiver  knows events it has had)
               ──▶ hooks-silent ──┘   hooks-*             └──▶ receiver
                                         │ after the last try
                                         ├──▶ dead-hooks: kept until reinstate.py redrives them
                                         └──▶ owners: the endpoint is disabled, and its owner is told

A queue for each receiver: what waits for a broken one is in nobody's way. When to try again is the queue's retry
policy, so it survives restarts of the worker and costs it nothing.
"""
