"""What ran where is read from pytest's own report: what is skipped here is told with the machine that ran it."""

import json
import subprocess
import sys
from pathlib import Path

OWN = "tools/tests/test_whole.py"
REPORT = """<testsuites><testsuite>
<testcase classname="tools.tests.test_whole" name="test_a"/>
<testcase classname="tools.tests.test_whole.TestOf" name="test_b"><failure message="no"/></testcase>
<testcase classname="tools.tests.test_whole" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def told(folder: Path, report: str) -> tuple[str, dict]:
    (folder / "report.xml").write_text(report)
    options = ["--out", folder / "ran.json", "--report", folder / "report.xml"]
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "whole.py", *options], capture_output=True, text=True, check=True
    )
    return done.stdout, json.loads((folder / "ran.json").read_text())[OWN]


def test_what_is_skipped_is_told_with_where_it_ran(tmp_path):
    said, ran = told(tmp_path, REPORT)
    assert (ran["passed"], ran["failed"], ran["skipped"]) == (1, 1, 1)
    assert said.startswith(f"not here: 1 of {OWN}: no GPU; the most that did: 2 of 3 ran on 20")
    # On another machine all three ran: that one is kept, though it was earlier.
    more = {OWN: {"passed": 3, "failed": 0, "skipped": 0, "date": "2026-01-02", "commit": "c" * 40, "machine": "a GPU"}}
    (tmp_path / "ran.json").write_text(json.dumps(more))
    said, ran = told(tmp_path, REPORT)
    assert ran == more[OWN] and "3 of 3 ran on 2026-01-02, a GPU, ccccccc" in said
