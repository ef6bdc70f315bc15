"""A draft on the user's device, a target in the cloud, and a modelled channel between (FlexSpec, arXiv 2601.00644)."""
