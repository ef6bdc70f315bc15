"""TLT: a bandit chooses the size of each tree, and a head learns meanwhile."""
