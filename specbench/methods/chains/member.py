"""Vanilla decoding with one of the pair's models, to compare with what they do together."""

from pydantic import Field

from specbench.config import Settings as Base
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Watch
from specbench.methods.chains.vanilla import Vanilla


class Settings(Base):
    model: str = Field(description="the role of the model: draft, target, or that of a member")


class Member(Vanilla):
    """One forward of one model per token. Not lossless, since the tokens are that model's and not the target's."""

    lossless = False


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Member(pair.session(settings.model, watch))
