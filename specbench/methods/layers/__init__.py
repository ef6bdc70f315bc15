"""Methods that draft with some of the target's own layers."""
