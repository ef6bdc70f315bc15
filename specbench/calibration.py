"""Fill CSD's correction memory: plain speculative sampling over calibration documents, whose rejections are counted."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from specbench import config
from specbench.config import MethodSpec, Plan, UserError
from specbench.console import console, progress
from specbench.decoding.accept import exact
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Sampling
from specbench.harness import Request
from specbench.memory import write_memory
from specbench.models import Pair, load_pair
from specbench.run import check_lengths, detokenizer, encode, load_tasks, stable_seed


def calibrate(
    suite: str,
    pair: str,
    method: str,
    assignments: Sequence[str],
    documents: int,
    temperature: float,
    seed: int,
    device: str,
    dtype: str,
    data_dir: Path | None,
    out: Path | None,
) -> None:
    """Count (draft token, target token) at the first rejection of every round (CSD, section 4.2) into a file."""
    spec = config.load_method(method)
    if spec.method != "csd":
        raise UserError(f"{method} needs no calibration; csd does")
    spec = config.override(spec, config.parse_assignments(assignments).get(spec.name, {}))
    pair_spec, suite_spec = config.load_pair(pair), config.load_suite(suite)
    plan = Plan(
        pair=pair_spec,
        methods=(spec,),
        baseline=None,
        suite=suite_spec.name,
        tasks=config.resolve_tasks(suite_spec, pair_spec, str(data_dir) if data_dir else None),
        limit=documents,
        data_dir=str(data_dir) if data_dir else None,
        seed=seed,
    )
    path = out or Path(f"memory-{pair_spec.name}-{suite_spec.name}.parquet")
    if path.exists():
        raise UserError(f"{path} exists; choose another --out")
    loaded = load_pair(pair_spec, device, dtype)
    requests = list(_requests(plan, loaded, documents, seed))
    check_lengths(requests, [encode(loaded, r.prompt) for r in requests], loaded, spec.values["gamma"] + 1)
    counts = _count(loaded, requests, spec, Sampling(temperature), seed)
    source = {
        "suite": suite_spec.name,
        "documents": len(requests),
        "temperature": temperature,
        "gamma": spec.values["gamma"],
    }
    write_memory(path, counts, loaded, {key: json.dumps(value) for key, value in source.items()})
    console.print(f"{sum(counts.values())} rejections of {len(counts)} pairs from {len(requests)} documents: {path}")
    console.print(f"next: specbench run --method csd --suite {suite} --set csd.memory={path}", highlight=False)


def _requests(plan: Plan, pair: Pair, documents: int, seed: int) -> Iterator[Request]:
    """Calibration prompts of the plan's tasks: generated ones for bundled tasks, else the task's train split."""
    for line in plan.tasks:
        if not line.task.startswith("pocket_"):
            split = config.task_info(line.task).calibration
            if split is None:
                raise UserError(
                    f"{line.task} has no documents for calibration besides those it tests; calibrate on a suite with "
                    "another task of its kind, such as gsm8k, and give the file to run by --set csd.memory=FILE"
                )
            yield from load_tasks(plan.model_copy(update={"tasks": (line,)}), pair, split).requests()
            continue
        from specbench.pocket.corpus import FAMILIES, prompt_and_completion
        from specbench.pocket.problems import problems

        family = line.task.removeprefix("pocket_")
        limit = config.task_info(line.task).max_new_tokens
        for number, problem in enumerate(
            itertools.islice(problems(family, FAMILIES[family], "calibration", seed), documents)
        ):
            prompt, _ = prompt_and_completion(family, problem.fields)
            yield Request(line.task, number, prompt, (), limit, "", "")


def _count(
    pair: Pair, requests: list[Request], spec: MethodSpec, sampling: Sampling, seed: int
) -> Counter[tuple[int, int]]:
    target, drafter = pair.session("target"), ModelDrafter(pair.session("draft"))
    counts: Counter[tuple[int, int]] = Counter()
    with progress("calibrating", len(requests)) as advance:
        for request in requests:
            ending = Ending(Limits(request.max_new_tokens, pair.eos_ids, request.until), detokenizer(pair))
            rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, request.task, request.doc_id))
            prompt = encode(pair, request.prompt)
            rounds = speculate(target, drafter, exact, spec.values["gamma"], prompt, sampling, rng)
            for one in until_end(rounds, ending):
                verdict = one.verdict
                if verdict and not one.truncated and verdict.accepted < len(verdict.drafted):
                    pair_of_tokens = verdict.drafted[verdict.accepted], verdict.targets[verdict.accepted]
                    if pair_of_tokens[0] != pair_of_tokens[1]:
                        counts[pair_of_tokens] += 1
            advance(1)
    return counts
