"""Settings that cannot be are refused in one line, by every method, before anything is decoded."""

import pytest
from builders_engine import build
from refusals import one_line_error

NAN = float("nan")
# By method: settings that are changed, and what the line says.
REFUSED: dict[str, list[tuple[dict[str, object], str]]] = {
    "aasd": [
        ({"candidates": -1}, "aasd: candidates"),
        ({"choice": "any"}, "aasd: choice"),
        ({"alpha": NAN}, "aasd: alpha"),
        ({"beta": 1.5}, "aasd: beta"),
        ({"shortest": 9}, "aasd: shortest: 9 is more than ngram"),
        ({"betas": 0.1}, "did you mean 'beta'"),
    ],
    "confidence": [({"threshold": 0}, "threshold: input should be greater than 0")],
    "cospec": [
        ({"threshold": 1.2}, "threshold"),
        ({"threshold": -0.1}, "threshold"),
        ({"threshold": NAN}, "threshold"),
        ({"arbiter": "foo"}, "random:P"),
        ({"arbiter": "random:2"}, "random:P"),
        ({"arbiter": {"random": None}}, "arbiter: "),  # as YAML reads "random:"
        ({"arbiter": "random:-1"}, "random:P"),
        ({"arbiter": "random:1.2.3"}, "random:P"),
        ({"mask": "none"}, "mask"),
        ({"candidates": "both"}, "candidates"),
        ({"gamma": 0}, "gamma"),
        ({"arbitrator": "gone"}, "there is no head gone"),
        ({"backbone": "gone"}, "cannot load gone"),
        ({"backbone": "arbitrary/gone"}, "cannot load arbitrary/gone"),
    ],
    "cumulative": [({"threshold": 1.5}, "threshold: input should be less than 1")],
    "dflash": [({"block": -1}, "dflash: block"), ({"proposal": "sampled"}, "dflash: proposal")],
    "eagle2": [({"nodes": 0}, "eagle2: nodes"), ({"top_k": 0}, "eagle2: top_k"), ({"gamma": 0}, "eagle2: gamma")],
    "eagle": [({"recipe": "eagle3"}, "eagle: recipe"), ({"head": "gone"}, "there is no head gone")],
    "eagle3": [
        ({"top_k": 0}, "eagle3: top_k"),
        ({"total_tokens": 1}, "eagle3: total_tokens"),
        ({"depth": -1}, "eagle3: depth"),
    ],
    "fly": [
        ({"gamma": 5}, "fly: window_length: 6 must be less than gamma (5)"),
        ({"gamma": 6}, "window_length: 6 must be less than gamma (6)"),
        ({"window_length": 15}, "window_length: 15 must be less than gamma (15)"),
        ({"gamma": 0}, "gamma"),
        ({"window_length": 0}, "window_length"),
        ({"entropy_threshold": -0.1}, "entropy_threshold"),
        ({"form": "vllm"}, "form"),
        ({"entropy": "top5"}, "entropy"),
        ({"window": 6}, "window"),
        ({"sampling": "loose"}, "sampling"),
        ({"ngram_size": 0}, "ngram_size"),
        ({"entropy_treshold": 0.3}, "did you mean 'entropy_threshold'"),
        ({"length": "confidence"}, "fly.ngram=false"),
    ],
    "hydra": [({"nodes": 0}, "hydra: nodes"), ({"head": "gone"}, "there is no head gone")],
    "mtp": [({"steps": -1}, "mtp: steps"), ({"head": "gone"}, "there is no head gone")],
    "judge": [
        ({"threshold": 1.5}, "threshold"),
        ({"gamma": 0}, "gamma"),
        ({"treshold": 0.5}, "did you mean 'threshold'"),
    ],
    "kangaroo": [
        ({"gamma": 0}, "kangaroo: gamma"),
        ({"threshold": 1.0}, "kangaroo: threshold"),
        ({"head": "gone"}, "there is no head gone"),
    ],
    "lookahead": [
        ({"window": 0}, "lookahead: window"),
        ({"ngram": 1}, "lookahead: ngram"),
        ({"candidates": 0}, "lookahead: candidates"),
        ({"window": 2.5}, "lookahead: window"),
        ({"guesses": 3}, "guesses"),
        ({"ngrams": 3}, "did you mean 'ngram'"),
    ],
    "lossy": [
        ({"form": "soft"}, "form"),
        ({"gamma": 0}, "gamma"),
        ({"gate_threshold": 1.5}, "gate_threshold"),
        ({"lenience": -0.1}, "lenience"),
        ({"leniency": 0.5}, "did you mean 'lenience'"),
    ],
    "mdsd": [({"drafts": 0}, "mdsd: drafts"), ({"replacement": "often"}, "mdsd: replacement")],
    "medusa": [
        ({"nodes": 0}, "medusa: nodes"),
        ({"accuracies": [[1.5]]}, "medusa: accuracies"),
        ({"rule": "loose"}, "medusa: rule"),
        ({"head": "gone"}, "there is no head gone"),
    ],
    "opt-tree": [({"nodes": 0}, "opt-tree: nodes"), ({"threshold": -0.1}, "opt-tree: threshold")],
    "pld": [
        ({"ngram": 0}, "pld: ngram"),
        ({"shortest": 4}, "pld: shortest: 4 is more than ngram (3); change one of them"),
        ({"gamma": 0}, "pld: gamma"),
        ({"match": "middle"}, "pld: match"),
        ({"ngrams": 3}, "did you mean 'ngram'"),
    ],
    "reflective": [
        ({"gamma": 0}, "gamma"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"alpha": NAN}, "alpha"),
        ({"prefix_tokens": -1}, "prefix_tokens"),
        ({"prefix_tokens": 1.5}, "prefix_tokens"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["BACK"]}, "prompt"),
        ({"prefx_tokens": 3}, "did you mean 'prefix_tokens'"),
    ],
    "rest": [
        ({"longest": 17}, "rest: longest"),
        ({"shortest": 0}, "rest: shortest"),
        ({"longest": 3, "shortest": 4}, "4 is more than longest (3)"),
        ({"hits": 0}, "rest: hits"),
        ({"nodes": 0}, "rest: nodes"),
        ({"ngram": 2}, "rest: ngram"),
        ({"fusion": "tree"}, "rest: fusion"),
        ({"datastore": ""}, "rest: datastore"),
        ({"node": 3}, "did you mean 'nodes'"),
    ],
    "rsd": [
        ({"gamma": 0}, "rsd: gamma"),
        ({"search": "wide"}, "rsd: search"),
        ({"width": 0}, "rsd: width"),
        ({"branching": [2, 0]}, "rsd: branching"),
        ({"length": "fixed"}, "length"),
        ({"search": "constant", "gamma": 1}, "branching names 2 levels, but gamma is 1; change one"),
    ],
    "sequoia": [
        ({"acceptance": []}, "sequoia: acceptance"),
        ({"acceptance": [1.5]}, "sequoia: acceptance"),
        ({"nodes": 0}, "sequoia: nodes"),
    ],
    "slimspec": [({"rank": 300}, "rank 192 at most"), ({"rank": -1.0}, "rank: -1.0 is not a number")],
    "specdecpp": [
        ({"threshold": 1.0}, "threshold: input should be less than 1"),
        ({"shortest": 5, "longest": 3}, "shortest: 5 is more than longest (3)"),
    ],
    "sps": [
        ({"gamma": 1, "length": "specdecpp"}, "length=specdecpp drafts at least 2 tokens"),
        ({"length": "sps"}, "length=sps: sps chooses no lengths; these do: bandit, confidence"),
        ({"length": "confidense"}, "did you mean 'confidence'"),
        ({"output": "csd"}, "csd is not an output layer; these are: slimspec, vocabtrim"),
        ({"output": "vocabtrimm"}, "did you mean 'vocabtrim'"),
    ],
    "swift": [({"branches": [1, 2]}, "swift: branches")],
    "vocabtrim": [
        ({"tokens": 3000}, "tokens=3000, but the draft of pocket has 2048"),
        ({"tokens": 0}, "tokens: 0 is not a number"),
        ({"tokens": 1.5}, "tokens: 1.5 is not a number"),
        ({"counts": "nowhere.safetensors"}, "there is no head nowhere"),
    ],
}
ROWS = [(name, *row) for name, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("name", "changes", "words"), ROWS, ids=[f"{name} {changes}" for name, changes, _ in ROWS])
def test_bad_settings_are_one_line(pocket, name, changes, words):
    with one_line_error(words):
        build(pocket, name, **changes)
