"""Delivers events to webhook receivers, which are sometimes slow, broken or unavailable.

    publish.py ──▶ hooks-steady ──┐                       ┌──▶ receiver (checks the signature,
               ──▶ hooks-flaky  ──┼── one worker over ────┼──▶ receiver  skips known events)
               ──▶ hooks-silent ──┘   hooks-*             └──▶ receiver
                                         │ after the last attempt
                                         ├──▶ dead-hooks: kept until reinstate.py redrives them
                                         └──▶ owners: the receiver is disabled, and its owner is notified

Each receiver has its own queue, so a broken receiver does not delay the others. The queue's retry policy schedules the
retries, so they survive restarts of the worker.
"""
