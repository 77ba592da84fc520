"""The client for threads. Most of it is made from batonq.client.aio by tools/make_sync.py; see there."""
