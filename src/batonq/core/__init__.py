"""The pure state machines: a shard's deliveries and the catalog. No I/O, clock or randomness; standard library only."""
