"""Imports DFlare's released block drafters: the importer of DFlash, which reads their form too."""

from specbench.training.dflash.released import import_head

__all__ = ["HUB", "import_head"]

HUB = True  # a checkpoint may be a name on the hub
