"""Formats of the queue attributes that the catalog stores as text, as SQS defines them: ARNs, policies, encryption."""
