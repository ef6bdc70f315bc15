"""RAPID: a draft that reads a shortened prompt; and cascades by its scores."""
