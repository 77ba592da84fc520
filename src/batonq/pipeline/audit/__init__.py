"""The audit: what must hold in every history, checked over all of it. One module a family of rules; kinds.py lists them."""
