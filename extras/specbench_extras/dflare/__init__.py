"""DFlare: a block drafter that mixes the target's layers (arXiv 2606.02091)."""
