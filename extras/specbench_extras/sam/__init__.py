"""SAM-Decoding: the longest suffix of the text that occurred before, by a suffix automaton."""
