"""The recipes for CoSpec's arbitrator: settings of both stages (recipes/cospec-*.yaml)."""

from pydantic import Field

from specbench.config import Settings
from specbench.methods.collaborative.cospec_arbitrator import Adapter
from specbench.training.recipe import AdamWRecipe
from specbench_extras.cospec.reward import Reward


class Sft(AdamWRecipe, Adapter):
    """The recipe of the warm-up (arXiv 2605.24793, appendix C.1)."""

    dropout: float = Field(ge=0, lt=1, description="of the adapters, during training")
    answers: int = Field(ge=1, description="texts of each document that are traced")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="of the traced texts; 0 is greedy")
    judge_temperature: float = Field(gt=0, allow_inf_nan=False, description="of a judge model's soft labels, in nats")
    both_right: float = Field(ge=0, le=1, description="rollout judge: label where both branches end right")
    both_wrong: float = Field(ge=0, le=1, description="rollout judge: label where both branches end wrong")
    batch: int = Field(ge=1, description="texts a step")


class Rl(Settings):
    """The recipe of the reinforcement (arXiv 2605.24793, section 3.4 and appendix C.2)."""

    updates: int = Field(ge=1, description="rollout batches")
    prompts: int = Field(ge=1, description="prompts of each")
    group: int = Field(ge=2, description="rollouts of each prompt")
    temperature: float = Field(
        ge=0, allow_inf_nan=False, description="of draft and target in the rollouts; 0 is greedy"
    )
    correct: float = Field(ge=0, allow_inf_nan=False, description="return of a right answer (c)")
    length: float = Field(ge=0, allow_inf_nan=False, description="per token of span, of a decision in a right one (α)")
    surprisal: float = Field(ge=0, allow_inf_nan=False, description="per nat of a kept token in a wrong answer (β)")
    rejection: float = Field(ge=0, allow_inf_nan=False, description="of a rejection in a wrong answer (η)")
    all_wrong: float = Field(ge=0, le=1, description="weight of groups without a right answer (w)")
    rebalance: bool = Field(description="right and wrong returns of a group sum to 0 (Eq. 27)")
    epsilon: float = Field(gt=0, description="added to a group's standard deviation")
    epochs: int = Field(ge=1, description="passes over each rollout batch")
    batch: int = Field(ge=1, description="texts a step")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="of AdamW, constant")
    weight_decay: float = Field(ge=0, allow_inf_nan=False, description="of AdamW")
    ratio: float = Field(gt=0, lt=1, description="how far PPO lets the probability ratio move (clip range)")
    entropy: float = Field(ge=0, allow_inf_nan=False, description="weight of the policy's entropy")
    kl: float = Field(ge=0, allow_inf_nan=False, description="weight of KL(π ‖ warm-up policy)")
    clip: float = Field(gt=0, description="largest norm of a step's gradient")
    evaluate: int = Field(ge=1, description="updates between two evaluations on held-out documents")

    @property
    def reward(self) -> Reward:
        return Reward(
            self.correct, self.length, self.surprisal, self.rejection, self.all_wrong, self.rebalance, self.epsilon
        )
