"""Makes swift_search.json: whole greedy texts of SWIFT's own code, with its search for the sublayers to skip. Call with

python tests/official/swift_search.py SWIFT tests/official/swift_search.json

in an environment with transformers 4.37.1 and bayesian-optimization 1.5.1, as SWIFT's requirements.txt says, and with
NumPy 1.26 and scikit-learn 1.5. SWIFT is github.com/hemingkx/SWIFT at 88caed75, in that folder. Of its
evaluation_llama/inference_swift.py swift_forward is executed, with all of model/swift that it calls and the optimizer
that its main program makes, for three texts in a row of a tiny Llama. Its weights are those of `weights`, in float64.

`objectives` are searches of swift_optimization's two samplers without a model, where a set's score is the sum of what
its sublayers give.
"""

import ast
import contextlib
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

WORDS, WIDTH, LAYERS, STEPS = 64, 32, 8, 24
CONFIG = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
LIMITS = [  # of the search, for one case each; `score`, `stale` and `tries` end three of them
    {"context_window": 6, "opt_interval": 1, "bayes_interval": 5},
    {"context_window": 9, "opt_interval": 3, "bayes_interval": 4},
    {"context_window": 12, "opt_interval": 2, "bayes_interval": 0},
    {"context_window": 6, "opt_interval": 1, "bayes_interval": 7, "max_score": 0.5},
    {"context_window": 8, "opt_interval": 1, "bayes_interval": 5, "max_tolerance_iter": 6},
    {"context_window": 7, "opt_interval": 2, "bayes_interval": 6, "max_opt_iter": 11},
]
USUAL = {"max_score": 0.93, "max_tolerance_iter": 300, "max_opt_iter": 1000, "skip_ratio": 0.45}
SUBLAYERS, SKIPPED, TRIES = 12, 5, 60  # of the objectives


def weights(shapes: dict[str, torch.Size], seed: int) -> dict[str, torch.Tensor]:
    """Random numbers for each tensor of a model, in the order of their names; inner layers say less than the others.

    Token 0 is never the likeliest one: the official code fills short paths of a tree with it, and can accept that.
    """
    rng, made = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        tensor = torch.randn(*shape, generator=rng, dtype=torch.float64)
        inner = name.startswith("model.layers.") and 0 < int(name.split(".")[2]) < LAYERS - 1
        size = 0.4 if inner and ("o_proj" in name or "down_proj" in name) else 8 if "lm_head" in name else 1
        made[name] = tensor if "embed" in name else size * tensor / shape[-1] ** 0.5 + ("norm" in name)
    made["lm_head.weight"][0] = 0
    return made


def prompt(seed: int) -> list[int]:
    return torch.randint(WORDS, (5 + seed % 7,), generator=torch.Generator().manual_seed(seed)).tolist()


def optimizer(sublayers: int) -> tuple[Any, Any]:
    """As the main program makes them."""
    from bayes_opt import BayesianOptimization, UtilityFunction

    bounds = {f"x{i}": (0, 1) for i in range(sublayers)}
    made = BayesianOptimization(f=None, pbounds=bounds, random_state=1, verbose=0, allow_duplicate_points=True)
    made.set_gp_params(alpha=1e-2)
    return made, UtilityFunction(kind="ucb", kappa=2.5, xi=0.0)


def sublayers(attention: Any, mlp: Any, layers: int) -> list[int]:
    """A set as numbers: the attentions of the inner layers, then their MLPs."""
    return sorted([int(i) - 1 for i in attention] + [layers - 2 + int(i) - 1 for i in mlp])


def texts(number: int, forward: types.FunctionType, utils: types.ModuleType, llama: types.ModuleType) -> dict[str, Any]:
    from transformers import LlamaConfig

    model = llama.LlamaForCausalLM(LlamaConfig(**CONFIG)).double().eval()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights(shapes, number))
    odd = np.arange(1, LAYERS - 1, 2)
    model.set_skip_layers(odd, odd)
    limits = USUAL | LIMITS[number % len(LIMITS)]
    state = limits | {"origin_score": 0, "opt_iter": 0, "tolerance_iter": 0, "optimization": True}
    state |= {"bayes": limits["bayes_interval"] > 0, "bayes_interval": limits["bayes_interval"] or 1}
    made, utility = optimizer(2 * (LAYERS - 2))
    register, kinds, found = made.register, [], []
    tries: list[dict[str, Any]] = []
    samplers = {name: getattr(utils, name) for name in ("layer_random_search", "layer_bayes_search")}

    def noted(name: str) -> Any:
        def sampler(*args: Any, **named: Any) -> Any:
            result = samplers[name](*args, **named)
            kinds.append(name == "layer_bayes_search")
            found.append(sublayers(*result[-2:], LAYERS))
            return result

        return sampler

    def scored(params: Any, target: float) -> None:
        tries.append({"skip": found[-1], "bayes": kinds[-1], "score": target})
        register(params=params, target=target)

    for name in samplers:
        setattr(utils, name, noted(name))
    made.register = scored
    tokenizer = types.SimpleNamespace(eos_token_id=-1)
    np.random.seed(number)
    told = []
    for text in range(3):
        before, ids = len(tries), prompt(10 * number + text)
        with torch.inference_mode():
            out, _, _, lengths, _ = forward(
                torch.tensor([ids]), model, tokenizer, 10**6, state, made, utility, max_steps=STEPS
            )
        best = sublayers(*model.get_skip_layers(), LAYERS)
        told.append({"prompt": ids, "text": out[0, len(ids) :].tolist(), "rounds": lengths, "best": best})
        told[-1] |= {"tries": tries[before:], "ended": not state["optimization"]}
    for name, own in samplers.items():
        setattr(utils, name, own)
    return {"seed": number, "limits": limits, "texts": told}


def gains(seed: int) -> list[float]:
    return [round(float(gain), 3) for gain in np.random.default_rng(seed).random(SUBLAYERS)]


def objective(seed: int, utils: types.ModuleType) -> dict[str, Any]:
    """The best score after so many tries, every second by the Gaussian process."""
    made, utility = optimizer(SUBLAYERS)
    np.random.seed(seed)
    given, layers, scores = gains(seed), SUBLAYERS // 2 + 2, []
    for number in range(TRIES):
        if number % 2:
            point, *skip = utils.layer_bayes_search(made, utility, SKIPPED, layers)
        else:
            skip = list(utils.layer_random_search(SKIPPED, layers))
            point = utils.get_next_point_to_probe(*skip, layers)
        scores.append(sum(given[i] for i in sublayers(*skip, layers)))
        made.register(params=point, target=scores[-1] / SUBLAYERS)
    return {"gains": given, "best": round(max(scores), 3)}


def main(checkout: str, out: str, count: str = "6", searches: str = "20") -> None:
    sys.path.insert(0, checkout)
    from model.swift import kv_cache, modeling_llama, utils

    logging.disable()
    file = Path(checkout, "evaluation_llama/inference_swift.py").read_text()
    wanted = [node for node in ast.parse(file).body if getattr(node, "name", "") == "swift_forward"]
    names = vars(utils) | {"initialize_past_key_values": kv_cache.initialize_past_key_values}
    exec(compile(ast.Module(wanted, []), "inference_swift.py", "exec"), names)
    with contextlib.redirect_stdout(sys.stderr):
        cases = [texts(number, names["swift_forward"], utils, modeling_llama) for number in range(int(count))]
        objectives = [objective(seed, utils) for seed in range(int(searches))]
    lines = [",\n".join(map(json.dumps, rows)) for rows in (cases, objectives)]
    Path(out).write_text('{"texts": [\n' + lines[0] + '\n],\n"objectives": [\n' + lines[1] + "\n]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
