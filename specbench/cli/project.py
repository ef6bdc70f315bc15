"""Commands that say what other settings, and other machines, would give."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from specbench.base.console import progress, say
from specbench.cli.errors import check_out, numbers, user_errors, whole_numbers
from specbench.cli.groups import Place, Texts, with_groups
from specbench.cli.options import (
    AllowCodeExecution,
    AllowEntryPoint,
    AllowPickle,
    FetchModels,
    Plain,
    TrustRemoteCode,
    known,
)
from specbench.cli.simulated import (
    ByContext,
    ForwardTimes,
    Gammas,
    Oracle,
    Replayed,
    Second,
    SecondRun,
    Shortest,
    Thresholds,
    simulated,
)
from specbench.config import UserError
from specbench.permissions import permitted
from specbench.plan import resolve_plan

PROFILED = ("sps", "specdecpp")  # the methods of a profile, if none is named


@with_groups
def profile(
    run: Annotated[Path | None, Argument(help="a run folder to read, instead of running", show_default=False)] = None,
    *,
    texts: Texts,
    documents: Annotated[int, Option(min=2, help="documents of each task")] = 20,
    repeats: Annotated[int, Option(min=1, help="how many times to decode each document; the median is taken")] = 5,
    method: Annotated[
        list[str] | None,
        Option(help="a method by name, or a YAML file; default: sps and specdecpp", autocompletion=known("methods")),
    ] = None,
    gamma: Annotated[str, Option(help="draft lengths of methods with a fixed one; at least two")] = "2,4,8",
    place: Place,
    runtime: Annotated[
        list[str] | None, Option(help="how forwards are computed; may be repeated; the runs use the first")
    ] = None,
    batch: Annotated[
        str | None, Option(help="also time forwards over this many texts at once, such as 1,2,4,8,16")
    ] = None,
    widths: Annotated[
        bool,
        Option(
            "--widths", help="only time forwards of 1 to 16 tokens, next to the time that reading the weights takes"
        ),
    ] = False,
    ceilings: Annotated[
        bool, Option("--ceilings", help="measure again what the machine can do at best, and do nothing else")
    ] = False,
    out: Annotated[
        Path | None, Option(help="JSON file to write; default: profile-PAIR.json; with --widths CSV: widths-PAIR.csv")
    ] = None,
    allow_code_execution: AllowCodeExecution = None,
    allow_entry_point: AllowEntryPoint = None,
) -> None:
    """Forward times of a pair by block width and context, and the time model that SpecDec++ fits to decoding.

    Each time stands next to the least that the forward can take at the machine's ceilings: the bandwidth of its memory,
    and the speed of a large matrix product. Ceilings are measured once, and later runs record them.

    Writes --out FILE.json (for `simulate --forward-times`), the fits to FILE.csv, and the runs to the folder FILE/.

    `specbench profile --pair pocket --documents 20 --repeats 5 --batch 1,4,16 --out pocket.json`

    `specbench profile --task gsm8k --documents 10 --out gsm8k.json`

    `specbench profile runs/one`

    `specbench profile --widths --runtime static --runtime eager --dtype bfloat16`

    `specbench profile --ceilings`
    """
    from specbench.report.finding import show
    from specbench.results.stored import stored_run

    allowed = permitted(
        False,
        False,
        allow_code_execution,
        allow_entry_point,
        texts.set_,
        fetch_models=run is None,
        methods=method,
        task_folders=texts.folders,
    )
    with user_errors(), allowed:
        if (ceilings or widths) and run:
            raise UserError(f"--{'ceilings' if ceilings else 'widths'} measures now; leave out the run folder")
        if run:
            stored_run(run)
        wanted = texts.of_plan() | place.of_plan() | ({"runtime": runtime[0]} if runtime else {})
        plan = resolve_plan(method or PROFILED, baseline="vanilla", limit=documents, repeats=repeats, **wanted)

        from specbench.report.views.profile import view  # after the names are checked: these imports take seconds
        from specbench.report.views.roofline import view as ceilings_view
        from specbench.report.views.widths import view as widths_view
        from specbench.studies import profile as study
        from specbench.studies import profile_pair, profile_widths
        from specbench.studies.ceilings import measure_ceilings

        if widths:
            out = out or Path(f"widths-{plan.pair.name}.csv")
            if out.suffix != ".csv":
                raise UserError(f"--out {out}: forwards by width are a .csv file")
            check_out(out)
            study.check((1, 2), runtime or ())
            curves = profile_widths.carry_out(plan, runtime or ())
            show(widths_view(curves))
            profile_widths.write(curves, out)
            say(f"written: {out}")
            return
        if ceilings:
            show(ceilings_view(measure_ceilings(texts.chosen, place.device, place.dtype)))
            return
        if run:
            _check_profile(out)
            figures: profile_pair.Profile | None = study.read(run)
        else:
            gammas = whole_numbers("--gamma", gamma)
            study.check(gammas, runtime or ())
            sizes = list(dict.fromkeys(whole_numbers("--batch", batch)))
            if sizes and min(sizes) < 1:
                raise UserError(f"--batch {batch}: batches have at least one text, such as 1,2,4,8")
            out = out or Path(f"profile-{plan.pair.name}.json")
            _check_profile(out)
            named = method is not None or bool(texts.set_)
            figures = study.carry_out(plan, gammas, runtime or (), named, out.with_suffix(""), sizes)
        if figures is None:
            raise typer.Exit(130)
        show(view(figures))
        if out:
            say(f"written: {out} and {profile_pair.write(figures, out).name}")


def _check_profile(out: Path | None) -> None:
    if out and out.suffix != ".json":
        raise UserError(f"--out {out}: a profile is a .json file (its runs go into the folder of the same name)")
    check_out(out)


def simulate(
    run: Annotated[Path, Argument(help="a run folder with drafts", show_default=False)],
    method: Replayed = None,
    forward_times: ForwardTimes = None,
    gamma: Gammas = None,
    threshold: Thresholds = None,
    shortest: Shortest = None,
    heads: Annotated[
        Path | None, Option(help="a folder of acceptance heads: the best threshold and speed of each")
    ] = None,
    by_context: ByContext = False,
    batch: Annotated[
        str, Option(metavar="N1,N2,…", help="texts decoded together; needs the --forward-times of profile --batch")
    ] = "1",
    load: Annotated[
        Path | None, Option(help="with several batches: a folder of specbench load to compare them with")
    ] = None,
    oracle: Oracle = False,
    second: Second = None,
    second_run: SecondRun = None,
    network: Annotated[str | None, Option(hidden=True)] = None,  # as it was called in earlier versions
    out: Annotated[
        Path | None, Option(help="with --heads: a CSV file to write, in the form of results/published")
    ] = None,
    format: Annotated[Plain, Option(help="how to print; csv and json have each task")] = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """What other draft lengths or hardware would have given, from the records of one run, without a model.

    Only with --heads is a model needed: the draft reads the run's drafts again for heads to score. Drafts must then
    have a fixed length.

    --forward-times also takes these, in seconds: width_slope (for each further token that the target reads),
    draft_start (of a round's first draft forward), overhead (of a round), draft_overhead (of a drafted token),
    early_slope (what each of the first early_tokens drafted tokens takes more), drafting (what a round takes more as
    soon as it drafts) and vanilla (of a token);
    context_slope and draft_context_slope (for each token in the cache), draft_width_slope (for each further token
    that a draft forward reads, as in a batch), and prefill and draft_prefill (for each token of the prompt).

    `specbench simulate runs/one --method sps --gamma 1,2,4,8`

    `specbench simulate runs/one --forward-times t_draft=0.0234,t_target=0.112,vanilla=0.108`

    `specbench simulate runs/one --gamma 2,4 --oracle --by-context`

    `specbench simulate runs/one --forward-times pocket.json --batch 4 --gamma 2,4`

    `specbench simulate runs/one --forward-times pocket.json --batch 1,4,16 --load runs/load`

    `specbench simulate runs/one --method sps --second eagle3-chain --second-run runs/other`

    `specbench simulate runs/long --method specdecpp --heads heads --out table3.csv`
    """
    from specbench.analysis.simulate_batches import simulate_batches
    from specbench.report.finding import show
    from specbench.report.views import simulate_batches as batches_view
    from specbench.report.views.simulate import heads_view, view
    from specbench.results.stored import StoredRun

    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        if network is not None:
            raise UserError(f"--network is a command: `specbench analyze network {run} --channel {network}`")
        sizes = list(dict.fromkeys(whole_numbers("--batch", batch)))
        if not sizes or min(sizes) < 1:
            raise UserError(f"--batch {batch}: batches have at least one text, such as 1,4,16")
        if (len(sizes) > 1 or load) and not heads:
            if threshold or shortest or oracle or second or second_run or out:
                raise UserError("several batches go with --method, --gamma, --forward-times and --load only")
            stored, lengths = StoredRun(run), whole_numbers("--gamma", gamma)
            with progress("replaying", len(sizes), aside=format is not Plain.table) as advance:
                table = simulate_batches(stored, method, forward_times, lengths, sizes, load, advance)
            show(batches_view.view(table), format.value)
            return
        if not heads:
            if out:
                raise UserError("--out goes with --heads; write `--format csv > FILE` for a simulation")
            drafts = method, forward_times, gamma, threshold, shortest
            figures = simulated(StoredRun(run), *drafts, by_context, oracle, second, second_run, format, sizes[0])
            show(view(figures), format.value)
            return
        others = (gamma, shortest, by_context, load, oracle, second)
        if any(others) or format is not Plain.table or sizes != [1]:
            raise UserError("--heads goes with --method, --forward-times, --threshold and --out only")
        from specbench.studies import heads as study

        stored, tried = StoredRun(run), numbers("--threshold", threshold)
        with progress("replaying heads", max(len(list(heads.glob("*.safetensors"))), 1)) as advance:
            speeds = study.study(stored, heads, method, forward_times, tried, advance)
        show(heads_view(study.best(speeds)))
        if out:
            study.write(speeds, stored, out)
            say(f"written: {out}")
