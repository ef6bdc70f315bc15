"""Engines of others, reached over HTTP: a client that streams and times, an adapter an engine, and when requests go."""
