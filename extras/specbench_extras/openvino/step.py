"""Forms of a model in OpenVINO that are compiled for one shape alone: often used widths, and a chain's step.

With fixed shapes the plugin prepares every operation once, not in each call. It packs the weights once more, so only
small models have such forms; of large ones the weights, not the preparation, decide the time. A step is a forward of
one token that also chooses the next one.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from openvino import opset13 as op

from specbench_extras.openvino.request import Request, shared

SMALL = 100_000_000  # parameters
WIDEST = 16  # tokens of a chain that may have a form of its own
OFTEN = 4  # forwards of a shape before it has one
FORMS = 2  # the most that a model has


class Kind(NamedTuple):
    """Which logits count, and how a token is chosen."""

    vocabulary: int  # V
    drawn: bool  # False: greedy


@dataclass(frozen=True)
class Shape:
    """A forward of a chain without hidden states."""

    width: int  # tokens fed
    keep: int  # tokens at its end that have logits


class Shapes:
    """Which shapes a model is fed often, and so has forms for."""

    def __init__(self) -> None:
        self.fixed: set[Shape] = set()
        self._counts: Counter[Shape] = Counter()

    def saw(self, shape: Shape) -> None:
        if shape.width <= WIDEST and shape not in self.fixed:
            self._counts[shape] += 1

    def chosen(self) -> list[Shape]:
        """The shapes that get a form now; from here on they count as fixed."""
        often = [shape for shape, count in self._counts.most_common(FORMS - len(self.fixed)) if count >= OFTEN]
        self.fixed.update(often)
        for shape in often:
            del self._counts[shape]
        return often


def fixed(model: Any, shape: Shape) -> Any:
    """A model with PagedAttention for one shape, in place."""
    model.reshape({"input_ids": [shape.width], "position_ids": [shape.width], "rows": [shape.keep], "past_lens": [1]})
    return model


def choosing(model: Any, kind: Kind) -> Any:
    """A model with PagedAttention in this form, in place. Its outputs become the token [1] and the logits [1, V].

    If tokens are drawn, its further input `lead` [1, V] is added to the logits before the highest is chosen.
    """
    fixed(model, Shape(1, 1))
    (result,) = model.get_results()
    logits = result.input_value(0)  # [1, 1, all logits]
    width = logits.get_partial_shape()[2].get_length()
    row = op.reshape(logits, _numbers(1, width), False)
    if width > kind.vocabulary:
        row = op.slice(row, _numbers(0), _numbers(kind.vocabulary), _numbers(1), _numbers(1))
    lead = op.parameter([1, kind.vocabulary], np.float32, name="lead") if kind.drawn else None
    best = op.topk(row if lead is None else op.add(row, lead), op.constant(np.int64(1)), -1, "max", "none", "i64")
    model.remove_result(result)
    model.add_results([op.result(op.reshape(best.output(1), _numbers(1), False)), op.result(row)])
    if lead is not None:
        lead.output(0).get_tensor().set_names({"lead"})
        model.add_parameters([lead])
    model.validate_nodes_and_infer_types()
    return model


def _numbers(*values: int) -> Any:
    return op.constant(np.array(values, np.int64))


class StepRequest(Request):
    """A request to this form of a model, whose outputs are always in the same memory."""

    def __init__(self, compiled: Any, kind: Kind) -> None:
        super().__init__(compiled)
        self.token: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        self.logits: npt.NDArray[np.float32] = np.zeros((1, kind.vocabulary), np.float32)
        self.lead: npt.NDArray[np.float32] = np.zeros((1, kind.vocabulary), np.float32)
        self.request.set_output_tensor(0, shared(self.token))
        self.request.set_output_tensor(1, shared(self.logits))
        if kind.drawn:
            self.bind("lead", shared(self.lead))
