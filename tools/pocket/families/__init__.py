"""Templates of the pocket problems, a file a family; see `problems` for what a template is."""
