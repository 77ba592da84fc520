"""The SQS operations: each turns its input into commands for the broker, and the broker's answers into an output."""
