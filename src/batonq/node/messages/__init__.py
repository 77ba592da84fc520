"""Messages and receipts: what was leased, read from the log; receipts sealed and opened; peek."""
