"""TLT's head of EAGLE-3 that learns while it serves (arXiv 2511.16665). Lossless at any moment.

After every few texts the head makes a step of AdamW towards the target, at all tokens of their answers. Between two
steps it is `tlt`: a bandit chooses the size of each round's tree. In the paper the target is trained meanwhile, and the
head follows it; here a target stays as it is for a run, and the head may have been trained on an earlier one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.eagle_steps import draft_steps
from specbench.engine.models.heads import find_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Round, Sampling, Watch
from specbench.methods.heads.eagle3 import KIND, SHAPES, check_target, eagle_head
from specbench_extras.osd.osd import Learner, LearningSettings
from specbench_extras.tlt.tlt import BanditSettings, SizedHead, Strategies, TreeBandit


class Settings(BanditSettings, LearningSettings):
    head: str = Field(
        description="head of EAGLE-3 to begin with, of this target or an earlier one: a file, or `auto` (the one that "
        "ships with the pair)"
    )
    steps: int = Field(ge=1, description="draft steps that are trained, each from the head's own states")
    step_decay: float = Field(gt=0, le=1, description="weight of a step's loss relative to the step before it")


class HeadLearner(Learner):
    """A head that learns from texts. Their places are those of the tokens that its first draft step can predict."""

    draft: EagleHead

    def __init__(self, head: EagleHead, target: PreTrainedModel, settings: Settings) -> None:
        super().__init__(head, target, settings)
        self.steps, self.decay, self.layers = settings.steps, settings.step_decay, layers_read(target)

    def loss(self, tokens: list[int], places: list[int]) -> Tensor:
        """The weighted sum of the cross-entropies of the target's and the head's distributions at these places.

        Step k predicts the token k places further on. Where the target's likeliest token is none of the head's, nothing
        is learned, as in the official code of EAGLE-3.
        """
        head, device = self.draft, self.draft.device
        text = torch.tensor([tokens], device=device)
        with torch.no_grad():
            out = self.target(text.to(self.target.device), use_cache=False, output_hidden_states=True)
            states = torch.cat([out.hidden_states[i] for i in self.layers], -1).to(device)
            taught = out.logits[0].to(device)
        ids = head.ids.clone()  # no longer of inference mode
        at = torch.tensor(places, device=device)
        ahead = at[:, None] + torch.arange(self.steps, device=device)  # [R, S]: what each step predicts
        read = text[0, (ahead - 1).clamp(max=len(tokens) - 1)]
        total = torch.zeros((), device=device)
        for step, (logits, _) in enumerate(draft_steps(head, text, states, at[None] - 2, read[None])):
            wanted = taught[(ahead[:, step] - 1).clamp(max=len(tokens) - 1)]
            counted = (ahead[:, step] < len(tokens)) & torch.isin(wanted.argmax(-1), ids)
            p = wanted[counted][:, ids].float().softmax(-1)
            total = total + self.decay**step * F.cross_entropy(logits[0, counted].float(), p, reduction="sum")
        return total


class LearningBandit(TreeBandit):
    """`tlt` whose head learns from text to text of a task."""

    penalised = True

    def __init__(
        self,
        target: Session,
        drafter: SizedHead,
        hashes: dict[str, str],
        learner: HeadLearner,
        seconds: dict[str, float],
    ) -> None:
        """`seconds` gets those of updates, counted or not, in place."""
        super().__init__(target, drafter, hashes)
        self.learner, self.seconds = learner, seconds

    def rounds(self, prompt: list[int], sampling: Sampling, rng: torch.Generator) -> Iterator[Round]:
        self.learner.update_due(self.seconds)
        self.tokens, self.prompt = list(prompt), len(prompt)
        for step in super().rounds(prompt, sampling, rng):
            self.tokens += step.tokens
            yield step

    def ended(self, last: Round) -> None:
        """Take in the text. The first token of an answer is not the head's to predict."""
        kept = self.tokens[: len(self.tokens) - last.truncated]
        self.learner.texts.append((kept, list(range(max(2, self.prompt + 1), len(kept)))))
        if self.learner.settings.count_updates:
            self.learner.update_due(self.seconds)

    def reset(self, task: str = "") -> None:
        super().reset(task)
        self.learner.forget()

    def state(self) -> Any:
        """What the bandit has learned, the texts so far, and a hash of the weights that follow.

        An update that is due is made: nobody times this.
        """
        self.learner.update_due(self.seconds)
        return {"strategies": super().state(), "head": self.learner.state()}

    def restore(self, state: Any) -> None:
        super().restore(state["strategies"])
        self.learner.restore(state["head"])


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """The head computes at the eager runtime: others keep copies of what changes.

    Raises UserError for a head that does not fit.
    """
    target = check_target(pair)
    stored = find_head(settings.head, KIND, pair, SHAPES, same_weights=False)
    head = eagle_head(stored, target, pair.vocabulary, pair.draft_device)
    strategies = Strategies(settings.times(), settings.epsilon, settings.window)
    session = Session(head, "draft", watch, head.config.vocab_size, home=pair.device)
    drafter = SizedHead(head, session, layers_read(target), settings.strategies, strategies)
    learner = HeadLearner(head, target, settings)
    return LearningBandit(pair.session("target", watch), drafter, stored.hashes(), learner, pair.seconds)
