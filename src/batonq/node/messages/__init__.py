"""Messages and receipts: reads leased messages from the log, seals and opens receipts, peeks at queues."""
