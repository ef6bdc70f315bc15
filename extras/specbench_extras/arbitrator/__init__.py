"""How many decisions of CoSpec's trained arbitrator change with the target's tokens."""
