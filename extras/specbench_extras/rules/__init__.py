"""How many tokens of a run's drafts each rule of acceptance would have kept."""
