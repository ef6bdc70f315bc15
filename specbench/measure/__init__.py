"""Runs: loop.py carries out a plan, document by document, and records it; workers and shards share one run."""
