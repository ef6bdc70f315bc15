"""`specbench leaderboard`: one sortable table of many runs, in groups that were measured alike."""
