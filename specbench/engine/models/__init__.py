"""The models of a pair: loading them, their trained heads, and variants over the same weights."""

import logging

for _noisy in ("torchao", "torch.utils._pytree"):  # transformers imports torchao where it is installed, which warns
    logging.getLogger(_noisy).setLevel(logging.ERROR)
