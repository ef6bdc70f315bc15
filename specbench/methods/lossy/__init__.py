"""Methods whose texts may differ from the target's own, and what their rules read."""
