"""What the records of a message's life do to the state."""
