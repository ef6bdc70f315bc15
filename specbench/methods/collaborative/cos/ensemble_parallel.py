"""Standard collaborative decoding with all models running at the same time: the same tokens as `ensemble`.

CoS (arXiv 2502.01662) calls it WE-P and CD-P; it is not in the authors' code. Here each model has its own thread, and
on a GPU its own stream.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Method, Scored, Watch
from specbench.methods.collaborative.cos.combining import parts
from specbench.methods.collaborative.cos.ensemble import Ensemble, Forward, Settings

__all__ = ["Settings", "build"]


def at_once(device: torch.device, count: int) -> Forward:
    """A function that runs the forwards of `count` sessions on `device` at the same time."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="member")
    streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []

    def run(sessions: Sequence[Session], forward: Callable[[Session], Scored]) -> list[Scored]:
        main = torch.cuda.current_stream(device) if streams else None

        def run_one(i: int) -> Scored:
            if main is None:
                return forward(sessions[i])
            streams[i].wait_stream(main)
            with torch.cuda.stream(streams[i]):
                return forward(sessions[i])

        futures = [pool.submit(run_one, i) for i in range(count)]
        wait(futures)  # for all, even if one fails: no thread may go on using a session
        if main is not None:
            for stream in streams:
                main.wait_stream(stream)
        return [future.result() for future in futures]

    return run


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    sessions, combination, inputs = parts(settings, pair, watch)
    return Ensemble(sessions, combination, inputs, at_once(pair.device, len(sessions)))
