"""The models of a pair: loading them, their trained heads, and variants over the same weights."""
