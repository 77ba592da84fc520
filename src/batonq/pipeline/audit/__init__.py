"""The audit: checks the invariants over the whole history. One module per family of rules."""
