"""The command that says how an engine of others is started, so that it can be measured."""

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench import config
from specbench.base.console import say
from specbench.cli.errors import user_errors
from specbench.cli.groups import Models, with_groups
from specbench.cli.options import Set, known
from specbench.config import UserError

Engine = Enum("Engine", {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}, type=str)
CHAIN = "eagle3-chain"  # what vLLM makes of eagle3


@with_groups
def serve_recipe(
    engine: Annotated[Engine, Argument(help="the engine")],
    *,
    models: Models,
    method: Annotated[
        str, Option(help="vanilla, sps, pld, pld-vllm, eagle3 or a variant", autocompletion=known("methods"))
    ] = "vanilla",
    set_: Set = None,
) -> None:
    """Print the command line that starts an engine with a pair and a method, so that it can be measured.

    It makes the engine report its rounds, and switches off caches of prompts and the model's own sampling settings. Add
    what your machine needs, such as `--tensor-parallel-size`.

    `specbench serve-recipe vllm --pair pocket --method sps --set sps.gamma=5`

    `specbench serve-recipe sglang --pair llama-3.3-70b-3.1-8b --method pld-vllm`
    """
    with user_errors():
        spec = config.load_method(method)
        for name, settings in config.parse_assignments(set_ or []).items():
            if name != spec.name:
                raise UserError(f"--set {name}.…: the method is {spec.name}")
            spec = config.override(spec, settings)

        from specbench_extras.serve_recipe.recipes import recipe  # after the names are checked

        pair = config.load_pair(models.chosen)
        if pair.draft_device:
            raise UserError("engines place their drafts themselves; leave out --draft-device")
        if any(model.weights or model.adapter for model in pair.models.values()):
            raise UserError(
                "engines read checkpoints as they are: name one with the adapters merged, or quantised weights"
            )
        made = recipe(engine.value, pair, spec)
        say(made.text())
        named = f"--pair {models.pair}" if isinstance(models.chosen, str) else f"--target {models.target}"
        assigned = list(set_ or [])
        if spec.method == "eagle3":  # its head is read here from a file of our own
            folder = Path(spec.values["head"])
            there = shlex.quote(str(folder)) if folder.is_dir() else "FOLDER"
            of = named if isinstance(models.chosen, str) else f"--pair target={models.target}"
            say(f"# then: specbench import eagle3-head {there} {of}")
            if engine is Engine.vllm and spec.values["top_k"] > 1:
                method = CHAIN
            assigned = [f"{method}.{text.partition('.')[2]}" for text in assigned if ".head=" not in text]
            assigned.append(f"{method}.head=eagle3-{folder.name}.safetensors")
        words = [] if spec.method == "vanilla" else ["--method", method]
        words += [word for text in assigned for word in ("--set", text)]
        say(f"# then: specbench audit --server {made.url} {named} {shlex.join(words)}".rstrip())
