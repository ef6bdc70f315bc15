"""Makes pearl.json: greedy texts and rounds of PEARL's own code. Call with a folder that holds a checkout of it:

python tests/official/pearl.py PEARL tests/official/pearl.json

PEARL is github.com/smart-lty/ParallelSpeculativeDecoding at 5a6f3690. Its src/kvcache.py and src/engine.py are executed
with the device cpu; called is parallel_speculative_decoding, in two threads that share what two processes gather there,
with `scores` in place of models.
"""

import json
import sys
import threading
import types
from pathlib import Path

import torch

SIZE = 20  # of the vocabulary


def scores(tokens: list[int], draft: bool) -> list[float]:
    """Logits after a text. The draft model knows less of it than the target, and so agrees with it now and then."""
    last, before = tokens[-1], tokens[-2] if len(tokens) > 1 else 0
    mixed = (7 * last + 3) * (1 if draft and before % 4 == 0 else 2 + before) + len(tokens) // 8
    return [((mixed + 1) * (word + 3) * (word + 10) % 1009 + word / 64) / 50 for word in range(SIZE)]


class Model:
    """The cache holds the tokens."""

    device = "cpu"

    def __init__(self, draft: bool) -> None:
        self.draft = draft

    def __call__(self, ids, past_key_values=None, use_cache=True):
        known = past_key_values[0][0][0, 0, :, 0].long().tolist() if past_key_values else []
        whole = known + ids[0].tolist()
        rows = [scores(whole[: end + 1], self.draft) for end in range(len(known), len(whole))]
        kept = torch.tensor(whole).view(1, 1, -1, 1)
        return types.SimpleNamespace(logits=torch.tensor([rows]), past_key_values=[(kept, kept)])


class Accelerator:
    """Of one of two threads."""

    def __init__(self, main: bool, shared: dict, barrier: threading.Barrier) -> None:
        self.is_main_process, self.shared, self.barrier = main, shared, barrier

    def wait_for_everyone(self) -> None: ...

    def gather(self, part):
        self.shared[self.is_main_process] = part
        self.barrier.wait()
        both = torch.cat([self.shared[True], self.shared[False]])
        self.barrier.wait()
        return both


def official(checkout: Path) -> type:
    source = {name: (checkout / "src" / f"{name}.py").read_text() for name in ("kvcache", "util")}
    names: dict = {"__name__": "official"}
    exec(source["util"], names)
    exec(source["kvcache"].replace("from .util import norm_logits, sample", ""), names)
    engine = (checkout / "src/engine.py").read_text().replace("cuda:1", "cpu")
    exec("import torch\nfrom abc import ABC, abstractmethod\n" + engine[engine.index("class Decoding") :], names)
    return names["Decoding"]


def text_of(decoding: type, prompt: list[int], gamma: int, count: int) -> dict:
    shared: dict = {}
    barrier, results = threading.Barrier(2), {}

    def one(main: bool) -> None:
        made = type("Made", (decoding,), {name: None for name in decoding.__abstractmethods__})
        self = object.__new__(made)
        self.accelerator, self.vocab_size, self.seed = Accelerator(main, shared, barrier), SIZE, 1
        self.num_acc_tokens = []
        self.args = types.SimpleNamespace(temp=0, top_k=0, top_p=0, max_tokens=count, gamma=gamma)
        self.draft_model, self.target_model = Model(True), Model(False)
        self.draft_forward_times = self.target_forward_times = 0
        text = self.parallel_speculative_decoding(torch.tensor([prompt]))
        results[main] = text[0].tolist(), self.num_acc_tokens, self.target_forward_times

    threads = [threading.Thread(target=one, args=(main,)) for main in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[True][:2] == results[False][:2]
    text, accepted, forwards = results[False]
    return {"gamma": gamma, "prompt": prompt, "text": text[len(prompt) :], "accepted": accepted, "forwards": forwards}


def main(checkout: str, out: str, count: str = "12") -> None:
    decoding = official(Path(checkout))
    prompts = [[(3 * place + 5 * number) % SIZE for place in range(8 + number % 5)] for number in range(int(count))]
    for prompt in prompts:  # the first token of an answer, which a prefill gives
        said = scores(prompt, False)
        prompt.append(said.index(max(said)))
    cases = [text_of(decoding, prompt, 2 + number % 5, 60) for number, prompt in enumerate(prompts)]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
