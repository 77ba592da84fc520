"""The audit: what must hold in every history, checked over all of it. A module for each family of rules."""
