"""The campaign: a real cluster under load, faults on purpose, and checkers that judge what the clients were told."""
