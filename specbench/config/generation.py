"""What a model's own generation_config.json asks for, which engines apply and a run here does not."""

from collections.abc import Mapping
from typing import Any

from specbench.base.untrusted import brief
from specbench.config.specs import SamplingSpec

# Values that change nothing, of what the settings of generation say about the choice of tokens. Limits, end tokens and
# caches are not among them: end tokens are those of the model, limits those of the task.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0,),
    "top_k": (0, -1, 50),  # 50: the default of transformers' earlier versions, which it wrote into every file
    "top_p": (1.0,),
    "min_p": (0.0,),
    "top_h": (1.0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
    "bad_words_ids": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "sequence_bias": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "stop_strings": (),
}
OPTIONS = SamplingSpec.model_fields.keys()  # what an option of `run` can say


def unused(own: Mapping[str, Any], sampling: SamplingSpec) -> dict[str, Any]:
    """Those of a model's `own` settings of generation that would change its texts and are not those of a run."""
    known = {key: own.get(key) for key in NEUTRAL}
    return {
        key: value
        for key, value in known.items()
        if value not in (None, [], {}, "") and value not in NEUTRAL[key] and value != getattr(sampling, key, None)
    }


def unused_words(values: Mapping[str, Any]) -> str:
    """The settings that `unused` found, in a line; empty if there are none."""
    if not values:
        return ""
    listed = ", ".join(f"{key} {brief(value)}" for key, value in values.items())
    flags = [f"--{key.replace('_', '-')} {brief(value)}" for key, value in values.items() if key in OPTIONS]
    others = [key for key in values if key not in OPTIONS]
    remedies = [f"{' '.join(flags)} takes them up"] * bool(flags)
    remedies += [f"{', '.join(others)} cannot be taken up"] * bool(others)
    return (
        f"the target's generation_config.json asks for {listed}, which engines apply and specbench leaves out; "
        f"{'; '.join(remedies)}"
    )
