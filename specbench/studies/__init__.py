"""Studies that decode beside a run: audits, checks of machines and pairs, profiles, memory, batches, engines."""
