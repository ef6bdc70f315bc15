"""What a run would take if draft and target worked at the same time."""
