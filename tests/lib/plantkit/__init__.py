"""Bugs planted in the product's processes, and the campaigns that have to find each of them."""
