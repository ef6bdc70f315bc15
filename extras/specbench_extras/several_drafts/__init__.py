"""Several draft models for one target: routed to the best, or fused."""
