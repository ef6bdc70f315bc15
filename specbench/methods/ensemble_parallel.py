"""Standard collaborative decoding with all models at work at the same time: the same tokens as `ensemble`.

CoS (arXiv 2502.01662) calls it WE-P and CD-P; it is not in the authors' code. Here each model has a thread, and on a
GPU a stream of its own.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from specbench.decoding.session import Session
from specbench.decoding.types import Method, Scored, Watch
from specbench.methods.combining import parts
from specbench.methods.ensemble import Ensemble, Forward, Settings
from specbench.models import Pair

__all__ = ["Settings", "build"]


def at_once(device: torch.device, count: int) -> Forward:
    """Forwards of `count` sessions on `device` at the same time."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="member")
    streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []

    def forward(sessions: Sequence[Session], ask: Callable[[Session], Scored]) -> list[Scored]:
        main = torch.cuda.current_stream(device) if streams else None

        def one(at: int) -> Scored:
            if main is None:
                return ask(sessions[at])
            streams[at].wait_stream(main)
            with torch.cuda.stream(streams[at]):
                return ask(sessions[at])

        asked = [pool.submit(one, at) for at in range(count)]
        wait(asked)  # all of them, also where one fails: nobody may be left at work on a session
        if main is not None:
            for stream in streams:
                main.wait_stream(stream)
        return [one.result() for one in asked]

    return forward


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    sessions, combination, inputs = parts(settings, pair, watch)
    return Ensemble(sessions, combination, inputs, at_once(pair.device, len(sessions)))
