"""`make test-all`: every test that this machine can run, and what it could not run, with where that ran last.

Writes one line of JSON a test file: how many tests passed, failed and were skipped on the machine that ran the most of
them, when, at which commit. A skip is printed with its reason and that machine. Exit code: pytest's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="the file of what ran where, which is brought up to date"
    )
    parser.add_argument("--report", type=Path, help="a JUnit report to read, instead of running the tests")
    parser.add_argument("tests", nargs="*", help="files or folders; default: all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report, code = given.report or Path(folder) / "tests.xml", 0
        if not given.report:
            options = ["-q", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0", f"--junitxml={report}"]
            options += ["-p", "asserted", "-o", "enable_assertion_pass_hook=true"]  # a test asserts something
            code = subprocess.run([sys.executable, "-m", "pytest", *options, *given.tests], cwd=ROOT).returncode
        counts, skipped = read(report)
    known = json.loads(given.out.read_text()) if given.out.is_file() else {}
    files = newest(known, counts, here())
    given.out.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(one)}' for name, one in files.items()) + "\n}\n")
    for (file, why), number in sorted(skipped.items()):
        print(f"not here: {number} of {file}: {why}; {last(files[file])}")
    return code


def here() -> dict[str, str]:
    """When and where tests run now."""
    import torch

    from specbench.base.environment import describe

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = describe(device)
    machine = str(facts.get("gpu") or facts.get("cpu") or facts.get("device"))
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit, "machine": f"{machine}, torch {torch.__version__}"}


def read(report: Path) -> tuple[dict[str, Counter[str]], Counter[tuple[str, str]]]:
    """Passed, failed and skipped tests by file, and the skipped ones by file and reason."""
    counts: dict[str, Counter[str]] = {}
    skipped: Counter[tuple[str, str]] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        file = file_of(case.get("classname") or case.get("name") or "")
        found = {child.tag: child for child in case}
        outcome = "failed" if found.keys() & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
        counts.setdefault(file, Counter())[outcome] += 1
        if outcome == "skipped":
            skipped[file, str(found["skipped"].get("message"))[:120]] += 1
    return counts, skipped


def file_of(name: str) -> str:
    """The file of a dotted name, which may end in a class."""
    parts = name.split(".")
    while parts and not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
        parts.pop()
    return "/".join(parts) + ".py" if parts else name


def newest(known: dict[str, Any], counts: dict[str, Counter[str]], where: dict[str, str]) -> dict[str, Any]:
    """What is known of each file, with this run in the place of those in which no more of its tests passed."""
    files = dict(known)
    for file, one in counts.items():
        if one["passed"] + one["failed"] >= known.get(file, {}).get("passed", 0):
            files[file] = {key: one[key] for key in ("passed", "failed", "skipped")} | where
    return dict(sorted(files.items()))


def last(one: dict[str, Any]) -> str:
    """Where the most tests of a file ran."""
    total = one["passed"] + one["failed"] + one["skipped"]
    ran = f"{one['passed'] + one['failed']} of {total} ran on {one['date']}, {one['machine']}, {one['commit'][:7]}"
    return f"the most that did: {ran}"


if __name__ == "__main__":
    sys.exit(main())
