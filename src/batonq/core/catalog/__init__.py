"""The catalog: the control plane's state machine. Queues, their attributes and links, keys, placement."""
