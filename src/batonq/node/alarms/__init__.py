"""Alarms: the rules that raise them, the book that keeps them, and the webhooks that are told of them."""
