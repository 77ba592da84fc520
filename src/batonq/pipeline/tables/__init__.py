"""The tables on top of events: each a declaration of its columns, and a pure function of data frames that makes it."""
