"""The first texts of a run by vanilla, and lm-eval's `hf` model on the same weights and prompts: texts and scores.

    python tools/recipes/like_lm_eval.py runs/qwen2.5-coder/humaneval-small 10 results/reference/like-lm-eval.json

In bfloat16 a text may part from the other where two tokens were nearly as likely: the file says at which character. The
generated programs of a task that runs code are run, isolated.
"""

import json
import sys
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from taken import taken

from specbench.measure.prepare import load_models_of
from specbench.measure.prompts import load_tasks
from specbench.permissions import permitted
from specbench.results.stored import StoredRun


def main(folder: str, count: str, out: str) -> None:
    run = StoredRun(Path(folder))
    pair = load_models_of(run, "eager")
    tasks = load_tasks(run.plan, pair)
    requests = tasks.requests()[: int(count)]
    samples = run.samples(["task", "doc_id", "method", "warmup", "text"])
    mine = samples[(samples.method == "vanilla") & ~samples.warmup].set_index(["task", "doc_id"]).text
    model = HFLM(pretrained=pair.models["target"], tokenizer=pair.tokenizer, batch_size=len(requests))
    limits = [{"until": list(r.until), "max_gen_toks": r.max_new_tokens, "do_sample": False} for r in requests]
    asked = [
        Instance("generate_until", {}, (request.prompt, limit), number)
        for number, (request, limit) in enumerate(zip(requests, limits, strict=True))
    ]
    made = model.generate_until(asked)
    texts = {(request.task, request.doc_id): text for request, text in zip(requests, made, strict=True)}
    rows = []
    for (task, doc_id), text in texts.items():
        ours = mine[task, doc_id]
        rows.append({"doc_id": doc_id, "equal": text == ours, "characters": len(text)})
        if text != ours:
            length = min(len(text), len(ours))
            parts = next((i for i, (one, other) in enumerate(zip(text, ours, strict=False)) if one != other), length)
            rows[-1] |= {"parts_at": parts, "lm-eval": text[parts : parts + 40], "specbench": ours[parts : parts + 40]}
    with permitted(allow_code_execution=True):
        score = {
            name: [s.value for s in tasks.score(of) if s.doc_id is not None and f"{s.metric},{s.filter}" == metric]
            for name, of in (("lm-eval", texts), ("specbench", {key: mine[key] for key in texts}))
            for metric in [run.plan.info(requests[0].task).metric]
        }
    facts = {
        **taken(pair.device),
        "dtype": run.plan.dtype,
        "equal": sum(row["equal"] for row in rows),
        "scores": score,
        "texts": rows,
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print(facts["equal"], "of", len(rows), "texts are equal; scores", score)


if __name__ == "__main__":
    with permitted(allow_code_execution=True):
        main(*sys.argv[1:])
