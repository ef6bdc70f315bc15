"""`specbench build-datastore`: the datastores in which `rest` looks up continuations (arXiv 2311.08252)."""
