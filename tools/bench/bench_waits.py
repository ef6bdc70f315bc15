"""Waits of the host and work that it starts in a round of a head, counted on a device that the CPU plays.

`python tools/bench/bench_waits.py --out FILE` writes both, for tiny models: counts, which no machine changes.
"""

import argparse
import json
from pathlib import Path

import pytest
from captured import KINDS, counted_rounds

from specbench.base.environment import git_state


def counts() -> dict[str, dict[str, float]]:
    """By method: waits and launches of a round, each graph one launch; the mean and the most of eight rounds."""
    found = {}
    for kind in KINDS:
        with pytest.MonkeyPatch.context() as patch:
            rounds = counted_rounds(patch, kind)
        waits, launches = [sum(waits.values()) for waits, _ in rounds], [started for _, started in rounds]
        found[kind] = {"waits": sum(waits) / len(waits), "most_waits": max(waits), "launches": max(launches)}
        print(f"{kind:8} waits {found[kind]['waits']:.1f} (at most {max(waits)}), launches {max(launches)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file of the counts, which become its `after`")
    chosen = parser.parse_args()
    after = {"commit": git_state(), "command": "python tools/bench/bench_waits.py", "rounds": counts()}
    if chosen.out:
        kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        chosen.out.write_text(json.dumps({**kept, "after": after}, indent=1) + "\n")


if __name__ == "__main__":
    main()
