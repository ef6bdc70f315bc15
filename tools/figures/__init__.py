"""Measured figures on pages: each stands behind a mark that says from which file under results/ it comes."""
