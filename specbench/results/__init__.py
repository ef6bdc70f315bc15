"""A run folder: its tables (records.py), how it is written, locked, read back and checked."""
