"""A chain's step in OpenVINO: a forward of one token that also chooses the next one, compiled for that shape alone.

With fixed shapes the plugin prepares every operation once, not in each call. It packs the weights once more, so only
small models have such a form; of large ones the weights, not the preparation, decide the time.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from openvino import opset13 as op

from specbench.engine.runtimes.openvino_request import Request, shared

SMALL = 100_000_000  # parameters


class Kind(NamedTuple):
    """Which logits count, and how a token is chosen."""

    vocabulary: int  # V
    drawn: bool  # False: greedy


def choosing(model: Any, kind: Kind) -> Any:
    """A model with PagedAttention in this form, in place. Its outputs become the token [1] and the logits [1, V].

    If tokens are drawn, its further input `lead` [1, V] is added to the logits before the highest is chosen.
    """
    model.reshape({"input_ids": [1], "position_ids": [1], "rows": [1], "past_lens": [1]})
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
