"""TAPS: several draft heads for one target (arXiv 2603.27027)."""
