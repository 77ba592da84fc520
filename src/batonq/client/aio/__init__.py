"""The client for asyncio. The form for threads, batonq.client.blocking, is made from this one by tools/make_sync.py."""
