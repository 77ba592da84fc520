"""The asyncio client. tools/make_sync.py generates most of the client for threads, batonq.client.blocking, from it."""
