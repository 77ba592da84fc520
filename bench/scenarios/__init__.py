"""The loads that the product was asked to carry, scaled to the machine, with every message counted."""
