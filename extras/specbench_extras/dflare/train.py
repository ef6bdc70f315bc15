"""Train DFlare's block drafter (arXiv 2606.02091): the trainer of DFlash, whose head then mixes the target's layers."""

from specbench_extras.dflash.train import GOES_ON, SHARED, train

__all__ = ["GOES_ON", "SHARED", "train"]
