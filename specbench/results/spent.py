"""The seconds that a run keeps in its `apart.json`, by what they were spent on."""

from specbench.base.folder import Member
from specbench.base.untrusted import read_json
from specbench.config import UserError

FILE = "apart.json"
PARTS = ("loading", "warm-up", "prefill", "decoding", "scoring")  # of `total`; the rest has no name
TOTAL = "total"


def read_seconds(path: Member) -> dict[str, float]:
    try:
        stored = read_json(path) if path.folder.has(path.name) else {}
    except UserError:  # a damaged file is worth no more than the seconds in it
        return {}
    items = stored.items() if isinstance(stored, dict) else ()
    return {what: seconds for what, seconds in items if isinstance(seconds, float)}
