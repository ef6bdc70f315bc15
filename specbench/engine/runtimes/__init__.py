"""Runtimes: how a model's forward is computed and where its cache is kept. Methods see only a `Session`."""
