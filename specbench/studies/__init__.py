"""Measurements other than a run: audits, checks of machines and pairs, profiles, benches, runs read again."""
