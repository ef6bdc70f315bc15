"""What a verification takes on `openvino`: any shape, a form for its shape alone, and one whose graph has the verdict.

Run by `make bench`. A forward of the bundled target over five tokens and the greedy test of the four drafted ones,
which the last form does in its graph: argmax, its logit and that of the drafted token. Seconds of turns in
one process, one thread; before each call three megabytes are written, since a target's weights go through the cache.
"""

import importlib.util
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benches import GREEDY, by_turns

from specbench.base.stats import Paired, speedup
from specbench.config import load_pair as read_pair
from specbench.engine.accept import weigh
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose
from specbench.engine.types import Draft, Scored

WIDTH, CONTEXT, TURNS = 5, 200, 300
OTHERS = 3_000_000  # bytes


def main() -> int:
    if importlib.util.find_spec("openvino") is None:
        print("openvino is not installed")
        return 0
    from specbench_extras.openvino.request import Request, shared
    from specbench_extras.openvino.step import Shape, fixed

    torch.set_num_threads(1)
    pair = load_pair(read_pair("pocket"), device="cpu")
    run: Any = choose.runtime("openvino", pair).runner(pair.models["target"])
    run.forward(torch.arange(CONTEXT) + 5, 1, (), None, None)
    forms = {
        "one shape": Request(run.paged._compile(fixed(run.paged._model(), Shape(WIDTH, WIDTH)))),
        "with the verdict": Request(run.paged._compile(judging(fixed(run.paged._model(), Shape(WIDTH, WIDTH))))),
    }
    verdict = [np.zeros(WIDTH, np.int64), np.zeros(WIDTH, np.float32), np.zeros(WIDTH - 1, np.float32)]
    for request in forms.values():
        run._prepare(request)
    for index, array in enumerate(verdict):
        forms["with the verdict"].request.set_output_tensor(index, shared(array))
    ids = torch.tensor([7, 8, 9, 10, 11])

    def called(form: str) -> None:
        run._set_inputs(forms[form], ids.numpy(), WIDTH)
        forms[form].infer()

    def judged(logits: torch.Tensor) -> list[int]:
        return weigh(Draft(ids[1:], None), Scored(logits[:, : pair.vocabulary]), GREEDY, torch.Generator()).emit

    def any_shape() -> list[int]:
        return judged(run.forward(ids, 0, (), None, None)[0])

    def one_shape() -> list[int]:
        called("one shape")
        return judged(forms["one shape"].output(0).clone())

    def with_the_verdict() -> list[int]:
        called("with the verdict")
        _drafted, emit, _, _ = ids.tolist()[1:], *(array.tolist() for array in verdict)
        return emit

    ways: dict[str, Callable[[], list[int]]] = {
        "any shape": any_shape,
        "one shape": one_shape,
        "with the verdict": with_the_verdict,
    }
    seconds = {way: np.zeros(TURNS) for way in ways}
    said: dict[str, list[int]] = {}
    others = np.zeros(OTHERS, np.int8)
    for turn, names in enumerate(by_turns(list(ways), TURNS)):
        for way in names:
            run.truncate(CONTEXT)
            others += 1
            began = perf_counter()
            said[way] = ways[way]()
            seconds[way][turn] = perf_counter() - began
    print(f"a verification of {WIDTH} tokens, {TURNS} turns, ratios with 95 % intervals")
    print(", ".join(f"{way} {1e3 * np.median(values):.3f} ms" for way, values in seconds.items()))
    once = np.ones(TURNS)
    for mine, base in (("one shape", "any shape"), ("with the verdict", "one shape")):
        ratio = speedup(Paired(seconds[mine], once, seconds[base], once))
        assert ratio
        print(f"{mine} takes {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {base}")
    return int(len({tuple(emit) for emit in said.values()}) > 1)


def judging(model: Any) -> Any:
    """A form of one shape whose outputs are, of each token, the argmax and its logit, and of drafted ones the gap."""
    from openvino import opset13 as op

    def numbers(*values: int) -> Any:
        return op.constant(np.array(values, np.int64))

    (result,) = model.get_results()
    logits = result.input_value(0)
    rows = op.reshape(logits, numbers(WIDTH, logits.get_partial_shape()[2].get_length()), False)
    best = op.topk(rows, op.constant(np.int64(1)), -1, "max", "none", "i64")
    ids = next(port for port in model.inputs if "input_ids" in port.get_names())
    places, drafted = op.constant(np.arange(WIDTH - 1)), op.constant(np.arange(1, WIDTH))
    axis = op.constant(np.int64(0))
    tokens = op.reshape(op.gather(ids, drafted, axis), numbers(WIDTH - 1, 1), False)
    gaps = op.subtract(
        op.gather_elements(op.gather(rows, places, axis), tokens, 1), op.gather(best.output(0), places, axis)
    )
    model.remove_result(result)
    outputs = ((best.output(1), WIDTH), (best.output(0), WIDTH), (gaps, WIDTH - 1))
    model.add_results([op.result(op.reshape(output, numbers(size), False)) for output, size in outputs])
    model.validate_nodes_and_infer_types()
    return model


if __name__ == "__main__":
    sys.exit(main())
