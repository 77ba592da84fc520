"""The campaign: a real cluster under load, injected faults, and checkers that compare the clients' results with the
logs.
"""
