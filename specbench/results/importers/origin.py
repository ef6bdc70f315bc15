"""Where and when another tool took its figures, as far as its file tells."""

import time
from collections.abc import Iterable
from typing import Any

LATEST = 2**32  # seconds since 1970: in the year 2106
LONGEST = 60  # characters of a host's name


def span(stamps: Iterable[Any]) -> dict[str, str]:
    """The first and the last of some times (seconds since 1970) as `began` and `ended`; other values do not count."""
    known = [stamp for stamp in stamps if isinstance(stamp, int | float) and 0 < stamp < LATEST]
    return {"began": _utc(min(known)), "ended": _utc(max(known))} if known else {}


def local_date(date: Any) -> dict[str, str]:
    """A date such as 20260131-235959, which `vllm bench` writes in the time of its own clock."""
    try:
        written = time.strftime("%Y-%m-%d %H:%M", time.strptime(date, "%Y%m%d-%H%M%S"))
    except (TypeError, ValueError):
        return {}
    return {"ended": f"{written} (its clock)"}


def host(entry: dict[str, Any]) -> dict[str, str]:
    """The host that an entry names, such as by `vllm bench serve --metadata host=NAME`."""
    name = entry.get("host") or entry.get("hostname")
    return {"host": name[:LONGEST]} if isinstance(name, str) else {}


def time_and_host(file: Any) -> str:
    """What a manifest keeps of a file's origin, in words."""
    known = {key: file.get(key) for key in ("host", "began", "ended")} if isinstance(file, dict) else {}
    texts = {key: text[:LONGEST] for key, text in known.items() if isinstance(text, str)}
    times = " to ".join(dict.fromkeys(texts[key] for key in ("began", "ended") if key in texts))
    return f"{times or 'time not told'}, {texts.get('host', 'host not told')}"


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
