"""`python tools/figures`: write every figure of the pages as its file has it; `--check`: only say which differ."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures.pages import check, rewrite

if __name__ == "__main__":
    found = check() if "--check" in sys.argv[1:] else rewrite()
    print("\n".join(found) or "every figure is that of its file")
    sys.exit(bool(found) and "--check" in sys.argv[1:])
