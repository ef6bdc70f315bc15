"""Imports DFlare's released block drafters: the importer of DFlash, which reads their form too."""

from specbench_extras.dflash.released import HUB, import_head

__all__ = ["HUB", "import_head"]
