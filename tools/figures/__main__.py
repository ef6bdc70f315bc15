"""`python tools/figures`: write each figure of the pages as its file has it, and the index of where files come from.

With `--check` it only says what differs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import provenance
from figures.pages import check, rewrite

if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        provenance.write(list(provenance.updated(provenance.read())))
    found = provenance.wrong()
    found += check() if "--check" in sys.argv[1:] else rewrite()
    print("\n".join(found) or "every figure is that of its file")
    sys.exit(bool(found) and "--check" in sys.argv[1:])
