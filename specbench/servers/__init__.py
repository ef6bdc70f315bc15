"""Other engines, reached over HTTP: a client that streams and times, an adapter for each engine, and when to send."""
