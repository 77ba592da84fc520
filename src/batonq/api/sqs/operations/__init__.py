"""The operations: from an input to commands for the broker, and from its answers to an output."""
