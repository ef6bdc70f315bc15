"""The seed of a sample: what it depends on, that it is recorded, and that it is the one that is used."""

import hashlib
import itertools
from types import SimpleNamespace

import torch

from specbench.engine.clock import Stopwatch
from specbench.engine.types import Round, Sampling, Stateless
from specbench.measure.sample import Decoder
from specbench.tasks.harness import Request

CPU = torch.device("cpu")
MANY = 10**9
FEW = 4  # tokens


class Drawn(Stateless):
    """Commits whatever is drawn."""

    def rounds(self, prompt, sampling, rng):
        while True:
            yield Round(torch.randint(MANY, (1,), generator=rng).tolist())


def sample(seed=5, repeat=0, task="gsm8k", number=0, method="sps", warmup=False):
    pair = SimpleNamespace(device=CPU, eos_ids=frozenset(), detokenizer=lambda ids: "", extra_members=())
    pair.constrain = lambda constraint: None
    request = Request(task, number, "", (), FEW, "", "")
    decoder = Decoder(pair, Stopwatch(CPU), Sampling(1.0), seed)
    return decoder.decode(method, Drawn(), repeat, request, [1], 0, warmup)[0]


def test_a_seed_is_the_hash_of_what_names_a_sample():
    """Written out, since a stored run goes on only if it is the same on every machine and in every version."""
    digest = hashlib.sha256(b"5/1/gsm8k/3/csd[gamma=7]").digest()
    assert sample(5, 1, "gsm8k", 3, "csd[gamma=7]")["seed"] == int.from_bytes(digest, "big") >> (8 * 25)


def test_samples_that_differ_in_anything_draw_other_tokens():
    """In the run's seed, the repeat, the task, the document or the method."""
    results = [sample(*key) for key in itertools.product((5, 6), (0, 1), ("gsm8k", "math500"), (0, 1), ("sps", "csd"))]
    assert len({result["seed"] for result in results}) == len({tuple(result["tokens"]) for result in results}) == 32


def test_the_recorded_seed_is_what_tokens_are_drawn_from():
    one = sample(repeat=2, number=7)
    rng = torch.Generator().manual_seed(one["seed"])
    assert one["tokens"] == [int(torch.randint(MANY, (1,), generator=rng)) for _ in range(FEW)]
    assert sample(repeat=2, number=7)["tokens"] == one["tokens"]
