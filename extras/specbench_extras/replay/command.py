"""The command that measures drafts on recorded texts."""

from pathlib import Path
from typing import Annotated

from typer import Option

from specbench.base.console import progress, say
from specbench.cli.errors import check_names, user_errors
from specbench.cli.groups import fetching
from specbench.cli.options import Plain, Set, known
from specbench.config import UserError


def replay(
    traces: Annotated[
        Path | None, Option(help='JSON Lines of {"prompt": [ids], "generated": [ids]}; `id` and `task` are optional')
    ] = None,
    trajectories: Annotated[
        Path | None,
        Option(
            metavar="FILE.jsonl", help="instead: recorded conversations, whose answers are the texts; they need --pair"
        ),
    ] = None,
    method: Annotated[
        str, Option(help="a method that drafts without a model: pld, suffix or rest", autocompletion=known("methods"))
    ] = "pld",
    set_: Set = None,
    pair: Annotated[
        str | None,
        Option(
            help="the pair whose tokenizer made the ids; rest takes the datastore that ships with it",
            autocompletion=known("pairs"),
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="Parquet file to write, a row for each position")] = None,
    format: Annotated[Plain, Option(help="how to print; csv and json have each task")] = Plain.table,
) -> None:
    """How far recorded texts follow the drafts of a method, at every position; needs no model.

    `specbench replay --traces texts.jsonl --method pld --set pld.ngram=4`

    `specbench replay --traces texts.jsonl --method pld-vllm`

    `specbench replay --traces texts.jsonl --method rest --pair pocket`

    `specbench replay --trajectories conversations.jsonl --method suffix --pair smollm2`

    The ids may also be called prompt_ids and generated_ids, or prompt_token_ids and generated_token_ids.
    """
    with user_errors(), fetching():
        check_names(pair, method=method)
        if (traces is None) == (trajectories is None):
            raise UserError("say what to replay: --traces FILE.jsonl or --trajectories FILE.jsonl; give one")
        if trajectories and not pair:
            raise UserError(
                "--trajectories are texts: name the pair whose tokenizer and chat template make ids, --pair"
            )
        if traces and not traces.is_file():
            raise UserError(f"--traces {traces}: there is no such file")
        from specbench.report.finding import show  # after the names are checked, for these imports take seconds
        from specbench.results import records
        from specbench_extras.replay import study
        from specbench_extras.replay.view import view

        if out and (out.suffix != ".parquet" or not out.parent.is_dir()):
            raise UserError(f"--out {out}: name a .parquet file in a folder that exists")
        name, drafter, gamma = study.find_drafter(method, set_ or [], pair)
        if traces:
            texts = study.read_traces(traces)
            if pair:
                study.check_ids(texts, pair)
        else:
            assert trajectories and pair
            texts = study.read_trajectories(trajectories, pair)
        with progress(name, len(texts), aside=True) as advance:
            figures = study.replay(name, drafter, gamma, texts, advance)
        if out:  # first, so that a closed pipe loses nothing
            records.write_frame(out, figures.positions)
        show(view(figures), format.value)
        if out and format is Plain.table:
            say(f"written: {out}")
