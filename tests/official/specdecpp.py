"""Makes specdecpp.json: where SpecDec++'s own code ends its drafts. Call with a folder that holds a checkout of it:

python tests/official/specdecpp.py SPECDECPP tests/official/specdecpp.json

in an environment with transformers 4.34.1, as its requirements.txt says. SpecDec++ is
github.com/Kaffaljidhmah2/SpecDec_pp at 9c52edcf. Called is my_generate of specdec_pp/hf_generation.py with the schedule
`ada`, greedy and at temperature 1, for a tiny Llama, a draft that is a noisy copy of it, and an acceptance head of
specdec_pp/wrap_model.py. Their weights are those of `weights`, in float64, the head's in float32.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

WORDS, WIDTH, LAYERS, NEW, END = 40, 32, 3, 60, 7
FACTS: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 48}
FACTS |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
CHOICES = [(0.7, 2, 20), (0.3, 2, 20), (0.5, 1, 6), (0.9, 3, 12)]  # threshold, and the bounds of a draft


def weights(shapes: dict[str, torch.Size], seed: int) -> dict[str, torch.Tensor]:
    """Random numbers for each tensor of a model, in the order of their names."""
    rng, made = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        tensor = torch.randn(*shape, generator=rng, dtype=torch.float64)
        size = 4 if "lm_head" in name else 1
        made[name] = tensor if "embed" in name else size * tensor / shape[-1] ** 0.5 + ("norm" in name)
    return made


def models(seed: int) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    made = [LlamaForCausalLM(LlamaConfig(**FACTS)).double().eval() for _ in range(2)]
    shapes = {name: own.shape for name, own in made[0].state_dict().items()}
    tensors, noise = weights(shapes, seed), weights(shapes, 100 + seed)
    made[0].load_state_dict(tensors)
    made[1].load_state_dict({name: own if "norm" in name else own + 0.1 * noise[name] for name, own in tensors.items()})
    return made[0], made[1]


def case(seed: int, greedy: bool, generate: Any, head_class: Any) -> dict[str, Any]:
    target, draft = models(seed)
    threshold, shortest, longest = CHOICES[seed % len(CHOICES)]
    depth, ends = seed % 3, seed % 2 == 1
    head = head_class({"hidden_size": WIDTH, "num_layers": depth}).float()
    names = {name: own.shape for name, own in head.state_dict().items() if name.startswith(f"model.{depth}.")}
    tensors = weights(names, 200 + seed)
    block = weights({"weight": torch.Size([WIDTH, WIDTH]), "bias": torch.Size([WIDTH])}, 300 + seed)
    tensors |= {f"model.{at}.linear.{name}": own for at in range(depth) for name, own in block.items()}
    tensors[f"model.{depth}.bias"] = torch.tensor([0.0, 1.5])  # more is accepted than not
    head.load_state_dict(tensors)
    rng = torch.Generator().manual_seed(400 + seed)
    prompt = torch.randint(WORDS, (6 + seed % 4,), generator=rng).tolist()
    prompt = [token if token != END else 0 for token in prompt]
    with torch.no_grad():  # the first token of an answer, which a prefill gives
        prompt.append(int(target(torch.tensor([prompt])).logits[0, -1].argmax()))
    seen: list[list[int]] = []  # what the target reads in each round
    own = target.forward

    def read(ids: torch.Tensor, **named: Any) -> Any:
        seen.append(ids[0].tolist())
        return own(ids, **named)

    target.forward = read  # type: ignore[method-assign]
    torch.manual_seed(seed)
    text, _, count = generate(
        model=target,
        inputs=torch.tensor([prompt]),
        assistant_model=draft,
        max_length=len(prompt) + NEW,
        num_assistant_tokens_schedule="ada",
        do_sample=not greedy,
        top_k=0,
        assist_acc_head=head,
        stop_threshold=threshold,
        bound=(shortest, longest),
        eos_token_id=END if ends else WORDS,  # which no text has
        pad_token_id=0,
    )
    assert count == len(seen)
    drafts = [read[len(prompt) if not at else 1 :] for at, read in enumerate(seen)]
    drafts = drafts[:-1]  # the last one may be cut
    starts = [len(prompt)]
    answer = text[0].tolist()
    for at in range(1, len(seen)):  # each round begins with the token before, which the target has not read
        starts.append(starts[-1] + common(drafts[at - 1], answer[starts[-1] :]) + 1)
    return {
        "seed": seed,
        "greedy": greedy,
        "limits": [threshold, shortest, longest],
        "ends": ends,
        "prompt": prompt,
        "text": answer[len(prompt) :],
        "starts": [start - len(prompt) for start in starts[:-1]],
        "drafts": drafts,
    }


def common(draft: list[int], text: list[int]) -> int:
    """How many tokens of a draft the text begins with; the token after them is the target's."""
    same = [a == b for a, b in zip(draft, text, strict=False)]
    return same.index(False) if False in same else len(same)


def main(checkout: str, out: str, count: str = "12") -> None:
    sys.path.insert(0, str(Path(checkout, "specdec_pp")))
    torch.set_default_dtype(torch.float64)  # as its masks are made in this type
    from hf_generation import my_generate
    from wrap_model import AcceptancePredictionHead

    cases = [
        case(seed, greedy, my_generate, AcceptancePredictionHead)
        for seed in range(int(count))
        for greedy in (True, False)
    ]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
