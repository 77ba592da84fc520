"""Webhooks: events that are delivered to other people's servers, which are sometimes slow, broken or gone.

    publish.py ──▶ hooks-steady ──┐                       ┌──▶ receiver (checks the signature,
               ──▶ hooks-flaky  ──┼── one worker over ────┼──▶ receiver  ignores duplicates)
               ──▶ hooks-silent ──┘   hooks-*             └──▶ receiver
                                         │ after the last attempt
                                         ├──▶ dead-hooks: kept until reinstate.py redrives them
                                         └──▶ owners: the endpoint is disabled, and its owner is notified

There is one queue per receiver, so messages for a broken one block nobody else. The queue's retry policy schedules
retries, so they survive restarts of the worker and cost it nothing.
"""
