"""Decoding: types, sessions, sampling, the loop, the tests of drafts, and the clock, for one text or a batch."""
