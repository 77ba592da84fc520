"""The required loads of the product, scaled to the machine, with every message accounted for."""
