"""A draft that reads only the first and the last tokens of the text. Lossless.

MagicDec (arXiv 2408.11049) and TriForce (arXiv 2404.11912): in a long text most of a forward's time goes into the
cache, so a model drafts well and fast for itself if it reads a part of it. The part is that of StreamingLLM
(arXiv 2309.17453), in a cache of its own, which does not grow.
"""

from typing import Literal

from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import derived_runtime
from specbench.engine.runtimes.window import Window
from specbench.engine.session import Session
from specbench.engine.types import Method, Watch
from specbench.methods.chains.sps import SpS


class Settings(Base):
    gamma: int = Field(ge=1, description="draft tokens a round (γ)")
    sink: int = Field(ge=0, description="tokens at the beginning of the text that the draft reads")
    recent: int = Field(ge=1, description="tokens at its end that the draft reads")
    drafter: Literal["target", "draft"] = Field(description="who drafts: the target itself, or the pair's draft model")


def windowed(source: Session, watch: Watch, sink: int, recent: int, spare: int) -> Session:
    """A new sequence, as a draft, of the model of another one, whose cache holds a window (see `Window`)."""
    base = derived_runtime(source.runtime, source.model, checked=False)
    window = Window(base, sink, recent, spare)
    return Session(source.model, "draft", watch, source.vocabulary, window, source.prefixes, home=source.device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Raises UserError for a draft model with another tokenizer."""
    target = source = pair.session("target", watch)
    if settings.drafter == "draft":
        pair.need_one_tokenizer("a window counts the target's tokens")
        source = pair.session("draft", watch)
    else:
        pair.need_one_device("window drafts with the target itself")
    spare = settings.gamma + 1  # a round rolls back at most its draft
    draft = windowed(source, watch, settings.sink, settings.recent, spare)
    return SpS(target, ModelDrafter(draft), settings.gamma)
