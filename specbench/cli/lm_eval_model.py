"""specbench as a model of lm-evaluation-harness: `--model specbench --model_args pair=pocket,method=sps`.

lm-eval finds models of other packages only if they are registered in the same process. So `main` is the lm_eval command
with the model `specbench` registered; everything else is lm-eval's.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from specbench import config
from specbench.base.hashes import stable_seed
from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.choose import AUTO
from specbench.engine.runtimes.types import Runtime
from specbench.engine.types import Sampling
from specbench.measure.prepare import build, try_method
from specbench.measure.prompts import encode
from specbench.permissions import permitted

# The settings of a sampled request that are supported; a greedy text depends on no others.
_UNDERSTOOD = {"until", "max_gen_toks", "do_sample", "temperature"}


@register_model("specbench")
class SpecbenchLM(LM):
    """Generates with one method on one model pair.

    Args:
        pair, method: names as `specbench run` knows them.
        max_gen_toks: new tokens, if the task gives no number (256, as in lm-eval's `hf` model).
        batch_size: must be 1, as specbench generates one text at a time.
        device: the models' device. Without a GPU, a CUDA device (lm-eval's default) is replaced by specbench's own
            choice, as in lm-eval's `hf` model.
        max_batch_size: ignored, for lm-eval's command line.
        rest: passed on to `text_generator`.

    Raises:
        ValueError: batch_size is not 1.
    """

    def __init__(
        self,
        pair: str,
        method: str,
        max_gen_toks: int = 256,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        **rest: Any,
    ) -> None:
        super().__init__()
        if str(batch_size) != "1":
            raise ValueError(f"specbench generates one text at a time: batch_size must be 1, not {batch_size}")
        self._max_gen_toks = int(max_gen_toks)
        if device and (not device.startswith("cuda") or torch.cuda.is_available()):
            rest["device"] = device
        self._generate = text_generator(pair=pair, method=method, **rest)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """One text for each request, in their order, cut before the first stop string.

        Raises:
            ValueError: a request samples with a setting besides temperature, or with temperature 0.
        """
        texts = []
        for request in tqdm(requests, disable=disable_tqdm, desc="Running generate_until requests"):
            context, gen_kwargs = request.args
            settings: dict[str, Any] = dict(normalize_gen_kwargs(gen_kwargs, self._max_gen_toks))
            until = handle_stop_sequences(settings["until"], eos=None)  # the generator stops at end tokens by itself
            temperature = _temperature(settings, "temperature" in gen_kwargs)
            task = request.task_name or ""
            text = self._generate(context, tuple(until), settings["max_gen_toks"], temperature, task)
            text = postprocess_generated_text(text, stop=until, think_end_token=None)
            self.cache_hook.add_partial("generate_until", (context, gen_kwargs), text)
            texts.append(text)
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Raises NotImplementedError: nothing is generated."""
        _refuse()

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Raises NotImplementedError: nothing is generated."""
        _refuse()


def text_generator(
    pair: str, method: str, device: str = "auto", dtype: str = "auto", runtime: str = "auto"
) -> Callable[..., str]:
    """A function (prompt, until, max_new_tokens, temperature, task) -> text.

    What a method learns is kept from text to text, until the task changes.
    """
    with permitted(fetch_models=True):
        loaded = load_pair(config.load_pair(pair), device, dtype, runtime=runtime)
    spec = config.load_method(method)
    if runtime == AUTO:

        def trial(candidate: Runtime) -> None:
            try_method(spec, replace(loaded, runtime=candidate), [0] * 8)

        chosen, _ = choose.fastest(loaded, trial)
    else:
        chosen = choose.runtime(runtime, loaded)
    loaded = replace(loaded, runtime=chosen)
    built = build(spec, loaded, Stopwatch(loaded.device))

    current_task = ""

    def generate(prompt: str, until: tuple[str, ...], max_new_tokens: int, temperature: float, task: str = "") -> str:
        nonlocal current_task
        if task != current_task:
            built.reset(task)
            current_task = task
        ending = Ending(Limits(max_new_tokens, loaded.eos_ids, until), loaded.detokenizer)
        rng = torch.Generator(loaded.device).manual_seed(stable_seed(prompt))
        ids = encode(loaded, prompt)
        if len(ids) + max_new_tokens + built.reach > loaded.context:
            raise ValueError(f"a prompt of {len(ids)} tokens leaves no room for {max_new_tokens} in {loaded.context}")
        loaded.runtime.settle()
        for _ in decode_text(built, ids, Sampling(temperature), rng, ending):
            pass
        return ending.text()

    return generate


def _temperature(settings: dict[str, Any], given: bool) -> float:
    """The temperature in a request's normalized settings: 0 if greedy, 1 if it samples and `given` is false."""
    if not settings["do_sample"]:
        return 0.0
    if unknown := sorted(set(settings) - _UNDERSTOOD):
        raise ValueError(f"specbench samples with a temperature only, not with {', '.join(unknown)}")
    temperature = float(settings["temperature"]) if given else 1.0
    if temperature == 0.0:
        raise ValueError("do_sample is true but temperature is 0: set do_sample to false for greedy decoding")
    return temperature


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "specbench measures generation only: it has no log-likelihoods, choose tasks of output type generate_until"
    )


def main() -> None:
    """The lm_eval command, with the model `specbench` and its tasks added."""
    from lm_eval.__main__ import cli_evaluate

    if any(word.partition("=")[0] in ("--tasks", "-t") for word in sys.argv) and not any(
        word.partition("=")[0] == "--include_path" for word in sys.argv
    ):
        sys.argv += ["--include_path", str(config.SUITES / "tasks")]
    cli_evaluate()
