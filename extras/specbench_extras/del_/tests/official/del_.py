"""Makes del.json: exits and lengths that DEL's own code chooses. Call here with a folder that holds a checkout of it:

PYTHONPATH=../../../../../tests/official python del_.py DEL del.json

DEL is a copy of its code, github.com/359171110/DEL at db38c9d8; the authors' repository could not be had. Its
self_speculation/DEL.py is read; called are update_acceptance_and_confidence_stats and select_optimal_exit_and_gamma, as
`run` calls them, with ω = 0.95 and γ < 18 as in DEL_speculation_generator.py, on given shadow tokens.
"""

import random
import sys
import types

import torch
from checkout import module, store


def case(number: int, official) -> dict:
    """Rounds: the shadow tokens of each exit, whether they are the target's, their chances, and what is chosen then."""
    rng, layers = random.Random(number), 4 + number % 9
    model = types.SimpleNamespace(model=types.SimpleNamespace(layers=[None] * layers))
    state, rounds = official.DEL(model, gamma_max=18, omega=0.95), []
    skill = sorted(rng.random() for _ in range(layers - 1))
    for turn in range(8):
        places = 1 + state.current_gamma
        known = rng.randrange(1, 6) if turn == 0 else 0  # of the prompt
        right = [[int(rng.random() < skill[at]) for _ in range(known + places)] for at in range(layers - 1)]
        chances = [[round(rng.random(), 3) for _ in range(known + places)] for _ in range(layers - 1)]
        tokens = torch.cat([torch.tensor(right), torch.ones(1, known + places, dtype=torch.long)])  # 1 is the target's
        exit_layer, gamma = state.current_exit_layer, state.current_gamma
        scores = torch.tensor(chances)
        state.update_acceptance_and_confidence_stats(tokens, scores, exit_layer, known)
        state.select_optimal_exit_and_gamma()
        found = state.average_confidence[state.current_exit_layer - 1].mean().item()
        given = {"before": [exit_layer, gamma], "prompt": known, "right": right, "chances": chances}
        threshold = None if found != found or found == float("inf") else round(found, 6)
        rounds.append({**given, "chosen": [state.current_exit_layer, state.current_gamma], "threshold": threshold})
    return {"layers": layers, "rounds": rounds}


def main(checkout: str, out: str, count: str = "8") -> None:
    folder = types.ModuleType("self_speculation")
    utils = types.ModuleType("self_speculation.llama_model_utils")
    utils.decode_next_token = None  # type: ignore[attr-defined]
    sys.modules.update({"self_speculation": folder, "self_speculation.llama_model_utils": utils})
    store(case, module(checkout, "self_speculation/DEL.py"), out, count)


if __name__ == "__main__":
    main(*sys.argv[1:])
