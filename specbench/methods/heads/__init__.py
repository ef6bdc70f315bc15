"""Methods that draft with trained heads on the target's states."""
