"""The SQS API, in AWS JSON 1.0 and in query/XML."""
