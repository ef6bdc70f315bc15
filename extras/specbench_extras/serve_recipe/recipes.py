"""The command line that starts an engine with a pair and a method of ours, so that it can be measured.

Sampling defaults that a model's files bring and caches of prompts are switched off, and what an engine can tell of its
rounds is switched on. Flags of vLLM are those of 0.32, with which they were run. Those of llama.cpp are of its program
of October 2026, and their settings were run in xllamacpp. Those of SGLang are from its documentation (secondary
source), and were not run.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError
from specbench.config import MethodSpec, ModelSpec, PairSpec
from specbench.engine.models.folders import location

METHODS = ("vanilla", "sps", "pld", "eagle3")  # implementations that engines have, too
EXACT = {"match": "first", "whole": False, "reuse": False}  # settings of `pld` that make it vLLM's


@dataclass(frozen=True)
class Recipe:
    """A command line as groups of words, each a line of its own, and what a reader must know of it."""

    url: str
    groups: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For a shell: notes as comments, then the command."""
        lines = [f"# {note}" for note in self.notes]
        return "\n".join([*lines, " \\\n  ".join(shlex.join(group) for group in self.groups)])


def recipe(engine: str, pair: PairSpec, method: MethodSpec) -> Recipe:
    """How an engine (one of ENGINES) is started with a pair's models and a method.

    Raises:
        UserError: the engine has no such method, or what it needs is not named.
    """
    if method.method not in METHODS:
        raise UserError(f"--method {method.name}: engines have {', '.join(METHODS)}, and variants of them")
    if method.method == "sps" and pair.draft is None:
        raise UserError(f"the pair {pair.name} has no draft, which {method.name} needs; choose another --pair")
    if method.method == "eagle3" and method.values["head"] == "auto":
        raise UserError(
            f"engines read an EAGLE-3 head from a folder or the hub; name it: --set {method.name}.head=FOLDER_OR_NAME"
        )
    return ENGINES[engine](pair, method)


def _vllm(pair: PairSpec, method: MethodSpec) -> Recipe:
    values, notes = method.values, []
    config: dict[str, Any] = {}
    if method.method == "sps":
        assert pair.draft is not None
        config = {
            "method": "draft_model",
            "model": location(pair.draft.model),
            "num_speculative_tokens": values["gamma"],
        }
        config |= {"revision": pair.draft.revision} if _of_hub(pair.draft) else {}
    elif method.method == "pld":
        config = {"method": "ngram", "num_speculative_tokens": values["gamma"]}
        config |= {"prompt_lookup_max": values["ngram"], "prompt_lookup_min": values["shortest"]}
        if any(values[key] != value for key, value in EXACT.items()):
            notes.append("vLLM's n-gram drafts are those of pld-vllm with these lengths, not of " + method.name)
    elif method.method == "eagle3":
        config = {"method": "eagle3", "model": location(values["head"]), "num_speculative_tokens": values["depth"] + 1}
        if values["top_k"] > 1:
            notes.append("vLLM drafts a chain: its rounds are not those of a tree, but of eagle3-chain")
    speculation = [
        ["--speculative-config", json.dumps(config)],
        ["--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed"],
    ]
    groups = [
        ["vllm", "serve", location(pair.target.model), *_revision(pair.target)],
        ["--served-model-name", pair.name, *_place(8000)],
        ["--dtype", pair.target.dtype, "--generation-config", "vllm", "--no-enable-prefix-caching"],
        *(speculation if config else []),
    ]
    return Recipe("http://127.0.0.1:8000", groups, notes)


def _sglang(pair: PairSpec, method: MethodSpec) -> Recipe:
    values, notes = method.values, []
    speculation: dict[str, Any] = {}
    if method.method == "sps":
        assert pair.draft is not None
        speculation = {"algorithm": "STANDALONE", "draft-model-path": location(pair.draft.model)}
        speculation |= {"draft-model-revision": pair.draft.revision} if _of_hub(pair.draft) else {}
        speculation |= {"num-steps": values["gamma"], "eagle-topk": 1, "num-draft-tokens": values["gamma"] + 1}
    elif method.method == "pld":
        speculation = {"algorithm": "NGRAM", "num-draft-tokens": values["gamma"] + 1}
        speculation |= {"ngram-min-bfs-breadth": 1, "ngram-max-bfs-breadth": 1}
        notes.append(f"SGLang's n-grams are kept from text to text: its rounds are not those of {method.name}")
    elif method.method == "eagle3":
        speculation = {"algorithm": "EAGLE3", "draft-model-path": location(values["head"])}
        speculation |= {"num-steps": values["depth"] + 1, "eagle-topk": values["top_k"]}
        chain = values["depth"] + 2 if values["top_k"] == 1 else values["total_tokens"]  # with the last committed token
        speculation["num-draft-tokens"] = min(values["total_tokens"], chain)
    groups = [
        ["python", "-m", "sglang.launch_server", "--model-path", location(pair.target.model), *_revision(pair.target)],
        ["--served-model-name", pair.name, *_place(30000)],
        ["--dtype", pair.target.dtype, "--sampling-defaults", "openai", "--disable-radix-cache", "--enable-metrics"],
        *([f"--speculative-{key}", str(value)] for key, value in speculation.items()),
    ]
    return Recipe("http://127.0.0.1:30000", groups, [*notes, "from SGLang's documentation; this project never ran it"])


def _llamacpp(pair: PairSpec, method: MethodSpec) -> Recipe:
    values, notes = method.values, []
    converted = [pair.target.model]
    speculation: list[list[str]] = []
    if method.method == "sps":
        assert pair.draft is not None
        converted.append(pair.draft.model)
        speculation = [["--spec-type", "draft-simple", "--spec-draft-model", _gguf(pair.draft.model)]]
        speculation += [["--spec-draft-n-max", str(values["gamma"]), "--spec-draft-n-min", "0"]]
        speculation += [["--spec-draft-p-min", "0"]]
    elif method.method == "pld":
        sizes = ["--spec-ngram-simple-size-n", str(values["ngram"]), "--spec-ngram-simple-size-m", str(values["gamma"])]
        speculation = [["--spec-type", "ngram-simple", *sizes]]
        notes.append(f"llama.cpp looks for the last match of one length: its rounds are not those of {method.name}")
    elif method.method == "eagle3":
        converted.append(values["head"])
        speculation = [["--spec-type", "draft-eagle3", "--spec-draft-model", _gguf(values["head"])]]
        speculation += [["--spec-draft-n-max", str(values["depth"] + 1), "--spec-draft-p-min", "0"]]
    notes += [
        f"first: python convert_hf_to_gguf.py {shlex.quote(location(name))} --outfile {shlex.quote(_gguf(name))}"
        " --outtype f32"
        for name in converted
    ]
    groups = [
        ["llama-server", "--model", _gguf(pair.target.model), "--alias", pair.name, *_place(8080)],
        ["--parallel", "1", "--no-cache-prompt", "--top-k", "0", "--top-p", "1", "--min-p", "0"],
        *speculation,
    ]
    return Recipe(
        "http://127.0.0.1:8080", groups, [*notes, "with the flags of llama.cpp of October 2026; older ones have others"]
    )


ENGINES: Mapping[str, Callable[[PairSpec, MethodSpec], Recipe]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
}


def _place(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port)]


def _of_hub(model: ModelSpec) -> bool:
    """True if a model comes from the hub at a revision that is named."""
    return model.revision != "main" and not Path(location(model.model)).exists()


def _revision(model: ModelSpec) -> list[str]:
    return ["--revision", model.revision] if _of_hub(model) else []


def _gguf(name: str) -> str:
    """The file that a model is converted to."""
    return f"{Path(location(name)).name}.gguf"
