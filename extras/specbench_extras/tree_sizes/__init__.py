"""How often each rank of a tree is accepted, and the fastest tree for that."""
