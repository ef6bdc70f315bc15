"""Run commands of specbench in this process, and count their attempts to reach any host: `python offline.py FILE`.

FILE is JSON: a list of command lines, each a list of words. Prints JSON: of each line its exit code, its output, and
its attempts as seen by Python; and the attempts of all processes together that the kernel counted. The kernel's count
is of this network namespace, so it says something in one of its own only (`unshare -rn`), where no host can be reached.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

REACHING = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
attempts: list[str] = []


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. Sockets between processes of this machine have a path, not a host, for an address."""
    if event in REACHING:
        where = arguments[0] if event.startswith("socket.get") else arguments[1]
        if not isinstance(where, str | bytes) or event.startswith("socket.get"):
            attempts.append(f"{event} {arguments!r}")


def counted_by_kernel() -> int:
    """IP packets that were sent in this network namespace, or could not be for want of a route."""
    rows = [line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if line.startswith("Ip:")]
    counts = dict(zip(*rows, strict=True))
    newer = dict(line.split() for line in Path("/proc/self/net/snmp6").read_text().splitlines())
    names = ("OutRequests", "OutNoRoutes")
    return sum(int(counts[name]) + int(newer.get(f"Ip6{name}", 0)) for name in names)


def main(file: str) -> None:
    sys.addaudithook(note)
    import torch
    from command_line import call

    torch.set_num_threads(1)
    lines = []
    for words in json.loads(Path(file).read_text()):
        before, began = len(attempts), time.monotonic()
        done = call(*words)
        seconds = round(time.monotonic() - began, 1)
        print(seconds, done.exit_code, *words, file=sys.stderr)
        output = done.output + (repr(done.exception) if done.exit_code not in (0, 2) else "")
        lines.append({"words": words, "exit": done.exit_code, "output": output, "attempts": attempts[before:]})
    print(json.dumps({"lines": lines, "seen": len(attempts), "kernel": counted_by_kernel()}))


if __name__ == "__main__":
    main(sys.argv[1])
