"""DEER: a block drafter that reads the text alone (arXiv 2512.15176)."""

from specbench.methods.blocks.dflash import HEADS
from specbench_extras.deer.head import KIND, TextBlockHead

HEADS[KIND] = TextBlockHead  # so that DFlash's trainer makes it, and its files are read
