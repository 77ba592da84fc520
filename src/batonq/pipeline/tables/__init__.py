"""The tables derived from events: each a declaration of its columns, and a pure function of data frames that creates
it.
"""
