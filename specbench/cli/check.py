"""Commands that check this machine, the engine and the methods."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench import config
from specbench.cli.errors import check_names, check_out, user_errors
from specbench.cli.groups import Machine, Prompts, Staffed, chosen_pair, with_groups
from specbench.cli.options import AllowCodeExecution, AllowEntryPoint, Draft, Target, known
from specbench.config import UserError
from specbench.permissions import permitted
from specbench.plan import resolve_plan


@with_groups
def audit(
    *,
    prompts: Prompts,
    method: Annotated[
        list[str] | None, Option(help="a method by name, or a YAML file; default: all", autocompletion=known("methods"))
    ] = None,
    documents: Annotated[int, Option(min=1, help="documents of each task")] = 3,
    length: Annotated[int, Option(min=4, help="tokens of each greedy text")] = 96,
    draws: Annotated[int, Option(min=1, help="sampled texts of each document, of a few tokens")] = 25,
    server: Annotated[
        str | None,
        Option(metavar="URL", help="audit this server instead: its greedy texts and rounds against those decoded here"),
    ] = None,
    staffed: Staffed,
    machine: Machine,
    out: Annotated[Path | None, Option(help="also write the findings to this JSON file")] = None,
    allow_code_execution: AllowCodeExecution = None,
    allow_entry_point: AllowEntryPoint = None,
) -> None:
    """Test whether methods are lossless on this pair and machine. Exit code 1 if one should be but is not.

    Greedy texts are compared with vanilla's, and sampled tokens are tested against the target's distribution. Both
    references are computed by transformers, whatever the runtime; on llamacpp by llama.cpp, in new sequences.

    `specbench audit --pair pocket`

    `specbench audit --method sps --set sps.gamma=8 --draws 100`

    `specbench audit --method sps --task gsm8k --documents 2`

    `specbench audit --runtime static`

    `specbench audit --workers 4 --out audit.json`

    `specbench audit --server http://127.0.0.1:8000 --method sps --set sps.gamma=5`
    """
    allowed = permitted(
        allow_code_execution=allow_code_execution,
        entry_points=allow_entry_point,
        assignments=prompts.set_,
        fetch_models=True,
        methods=method,
        task_folders=prompts.folders,
    )
    with user_errors(), allowed:
        wanted = prompts.of_plan() | machine.of_plan()
        check_out(out)
        staffing = staffed.staffing()
        if server and staffing:
            raise UserError("--server is audited by this process; leave out --workers")
        if server:
            raise typer.Exit(_audit_server(server, method or ["vanilla"], wanted | {"limit": documents}, length, out))
        plan = resolve_plan(method or config.names("methods"), baseline=None, limit=documents, **wanted)

        from specbench.report.finding import show  # after the names are checked, for these imports take seconds
        from specbench.report.views.audit import view
        from specbench.studies import audit as audit_study

        findings, audited = audit_study.carry_out(plan, length, draws, bool(method), staffing)
        show(view(findings))
        if out:
            audit_study.write(out, findings, audited)
        raise typer.Exit(int(any(finding.verdict == "defect" for finding in findings)))


def _audit_server(server: str, method: list[str], wanted: dict[str, Any], length: int, out: Path | None) -> int:
    """Audit a server, which is called `server` if it has no name; returns the exit code."""
    if len(method) > 1:
        raise UserError("--server is compared with one method, the one that it runs; give --method once")
    named = server if "=" in server or server.endswith((".yaml", ".yml")) else f"server={server}"
    plan = resolve_plan(method, baseline=None, servers=[named], **wanted)
    if len(plan.servers) != 1 or len(plan.own) != 1:
        raise UserError(f"--server {server}: audit one server at a time")

    from specbench.report.finding import show
    from specbench.report.views.audit_server import view
    from specbench.studies import audit_server as study

    audited, pair = study.carry_out(plan, length)
    show(view(audited))
    if out:
        study.write(out, audited, pair)
    return int(not audited.verdict.startswith("as here"))


@with_groups
def doctor(
    *,
    pair: Annotated[str | None, Option(help="also look at this pair", autocompletion=known("pairs"))] = None,
    target: Target = None,
    draft: Draft = None,
    suite: Annotated[str | None, Option(help="also look at a suite", autocompletion=known("suites"))] = None,
    machine: Machine,
    json: Annotated[bool, Option("--json", help="print the findings as JSON and nothing else")] = False,
) -> None:
    """Find what would make the figures of this machine, a pair or a suite wrong. Exit code 1 on an error.

    `specbench doctor`

    `specbench doctor --pair pocket --suite math`
    """
    with user_errors(), permitted(fetch_models=True):
        chosen = chosen_pair(pair or "", target, draft, "") or None
        check_names(chosen, suite)

        from specbench.studies import doctor as module  # after the names are checked, as this import takes seconds

        raise typer.Exit(
            module.main(chosen, suite, machine.device, machine.dtype, machine.data_dir, json, machine.runtime)
        )
