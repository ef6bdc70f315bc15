"""Vanilla decoding of one of the pair's models, to stand beside what they do together."""

from pydantic import Field

from specbench.config import Settings as Base
from specbench.decoding.types import Method, Watch
from specbench.methods.vanilla import Vanilla
from specbench.models import Pair


class Settings(Base):
    model: str = Field(description="the role of the model: draft, target, or that of a member")


class Member(Vanilla):
    """One forward of one model a token. Its tokens are its own, and so lossless as to none but itself."""

    lossless = False


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    return Member(pair.session(settings.model, watch))
