"""What hostile programs got, by class and isolation: python tests/hostile_table.py. Exit code 1 if it is too much,
or if there is no complete isolation to try them in.

Forged: wrong programs that were scored as correct. Escaped: programs that reached what they wanted, of which `limits`
leaves some open (tests/support/hostile.py names them). As root, everything is tried as another user as well.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent / name) for name in ("support", ".", "..")]

# ruff: noqa: E402 (the path comes first)
from forging import FORGING, TESTS
from fuzz import machine
from hostile import PROGRAMS
from rich import box
from rich.console import Console
from rich.table import Table
from sandboxed import SYSTEM, as_nobody, fill, lacking, run, targets

from specbench.tasks import sandbox
from specbench.tasks.sandbox import jail

Counts = dict[str, dict[str, list[int]]]  # isolation -> "forged CLASS" or "escaped CLASS" -> [got, open to it, tried]


def counted() -> Counts:
    """Every program once under each isolation that works here, as this user."""
    kinds = [*(name for name in SYSTEM if not lacking(name)), "limits"]
    if problems := [f"{kind}: {why}" for kind in kinds[:-1] if (why := sandbox.problem_of(kind))]:
        raise SystemExit(f"an isolation that the system has does not work: {'; '.join(problems)}")
    if kinds == ["limits"]:
        raise SystemExit(f"no complete isolation to try programs in: {'; '.join(map(lacking, SYSTEM))}")
    result: Counts = {}
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as outside,
        targets(Path(home), Path(outside)) as target,
    ):
        for kind in kinds:
            sums: Counter[tuple[str, int]] = Counter()
            for name, program in FORGING.items():
                row = f"forged {name.partition(':')[0]}"
                sums.update({(row, 0): run(kind, program, TESTS).passed, (row, 1): 0, (row, 2): 1})
            for name, (program, open_to) in PROGRAMS.items():
                row = f"escaped {name.partition(':')[0]}"
                got = run(kind, fill(program, target)).passed
                sums.update({(row, 0): got, (row, 1): got and kind in open_to, (row, 2): 1})
            rows = dict.fromkeys(row for row, _ in sums)
            result[kind] = {row: [int(sums[row, place]) for place in range(3)] for row in rows}
    return result


def counted_as_nobody() -> Counts:
    with tempfile.TemporaryDirectory(prefix="specbench-nobody-") as folder:
        os.chown(folder, jail.NOBODY, jail.NOBODY)
        done = as_nobody([__file__, "--json"], folder)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return {f"{kind}, as nobody": rows for kind, rows in json.loads(done.stdout).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the counts of this user as JSON")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts")
    given = parser.parse_args()
    result = counted()
    if given.json:
        print(json.dumps(result))
        return 0
    if os.getuid() == 0:
        result |= counted_as_nobody()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("class", *result):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for row in next(iter(result.values())):
        table.add_row(row, *("{0} of {2}".format(*counts[row]) for counts in result.values()))
    Console(width=110, highlight=False).print(table)
    forged, escaped, left_open, tried = 0, 0, 0, 0
    for counts in result.values():
        for row, (got, open_to, number) in counts.items():
            forged += got if row.startswith("forged") else 0
            escaped += got - open_to if row.startswith("escaped") else 0
            left_open += open_to
            tried += number
    print(f"{tried} tries: forged {forged}, escaped {escaped}, and {left_open} by ways that limits leave open")
    if given.out:
        rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(counts)}" for kind, counts in result.items())
        text = "{\n" + rows + ",\n" + f'"environment": {json.dumps(machine())}' + "\n}\n"
        given.out.write_text(text)
    return int(forged + escaped > 0)


if __name__ == "__main__":
    sys.exit(main())
