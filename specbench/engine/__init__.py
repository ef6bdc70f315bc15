"""Decoding of one sequence: types, sessions, sampling, the loop, the tests of drafts, and the clock."""
