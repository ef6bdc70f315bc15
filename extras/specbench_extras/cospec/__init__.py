"""The arbitrator of CoSpec: warmed up on judged mismatches, then reinforced on its own rollouts."""
