"""Makes rejection.json: what vLLM's own rejection sampler accepts. Call with a folder that holds its package:

TRITON_INTERPRET=1 python tests/official/rejection.py VLLM tests/official/rejection.json

VLLM is the folder `vllm` of the source package vllm 0.18.1 on PyPI; triton must be installed, whose interpreter runs
kernels on a CPU. Read is v1/sample/rejection_sampler.py; called is rejection_sample, with its random numbers given:
those of each test and of the race for the token after a rejection.
"""

import random
import sys
import types

import torch
import triton
import triton.language as tl
from checkout import module, store

SIZE = 6  # of the vocabulary
NAMES = {
    "logger": ["init_logger"],
    "triton_utils": [],
    "v1.outputs": ["LogprobsLists", "LogprobsTensors", "SamplerOutput"],
    "v1.sample.logits_processor.builtin": ["MinTokensLogitsProcessor"],
    "v1.sample.metadata": ["SamplingMetadata"],
    "v1.sample.ops.bad_words": ["apply_bad_words_with_drafts"],
    "v1.sample.ops.penalties": ["apply_all_penalties"],
    "v1.sample.ops.topk_topp_sampler": ["apply_top_k_top_p"],
    "v1.sample.sampler": ["Sampler"],
    "v1.spec_decode.metadata": ["SpecDecodeMetadata"],
}


def case(number: int, official) -> dict:
    rng = random.Random(number)

    def rows(count):
        return [[round(rng.gauss(0, 1.5), 2) for _ in range(SIZE)] for _ in range(count)]

    drafted = [rng.randrange(SIZE) for _ in range(1 + number % 5)]
    target, draft = rows(len(drafted)), rows(len(drafted)) if number % 3 else None
    uniform = [round(rng.random(), 4) for _ in drafted]
    waits = [round(rng.expovariate(1) + 1e-4, 4) for _ in range(SIZE)]
    greedy = number % 7 == 6

    official.generate_uniform_probs = lambda *_: torch.tensor(uniform)
    official.torch = types.SimpleNamespace(**vars(torch))
    official.torch.empty = lambda *shape, **kind: Given(torch.empty(*shape, **kind), waits)
    kinds = {"all_greedy": False, "all_random": False, "generators": {}}
    sampling = types.SimpleNamespace(**kinds, temperature=torch.tensor([0.0 if greedy else 1.0]))
    found = official.rejection_sample(
        torch.tensor(drafted, dtype=torch.int32),
        [len(drafted)],
        len(drafted),
        torch.tensor([len(drafted)], dtype=torch.int32),
        None if draft is None else torch.tensor(draft).softmax(-1),
        torch.tensor(target),
        torch.tensor([[SIZE]], dtype=torch.int32),  # a bonus that is no token: only whether it is reached counts
        sampling,
    )
    tokens = [token for token in found[0].tolist() if token >= 0]
    given = {"drafted": drafted, "target": target, "draft": draft, "uniform": uniform, "waits": waits}
    return {**given, "greedy": greedy, "accepted": len(tokens) - 1, "next": tokens[-1]}


class Given:
    """A new tensor whose exponential numbers are given; all else is the tensor's own."""

    def __init__(self, tensor, waits):
        self.tensor, self.waits = tensor, waits

    def exponential_(self):
        self.tensor.copy_(torch.tensor([self.waits]))

    def __getattr__(self, name):
        return getattr(self.tensor, name)


def main(package: str, out: str, count: str = "60") -> None:
    for name, exported in NAMES.items():
        made = types.ModuleType(f"vllm.{name}")
        made.__dict__.update(dict.fromkeys(exported, object), tl=tl, triton=triton)
        sys.modules[made.__name__] = made
    sys.modules["vllm.logger"].init_logger = lambda name: None
    store(case, module(package, "v1/sample/rejection_sampler.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
