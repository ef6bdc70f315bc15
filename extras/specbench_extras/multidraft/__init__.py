"""The acceptance that several drafts per position would have had."""
