"""A Ray cluster of two nodes on this machine, on loopback only, which all tries share one after another."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection

from faults.child import CONTEXT, PATIENCE

INSTALLED = find_spec("ray") is not None
NO_RAY = "Ray is not installed"
CPUS = (1, 2)  # that each node lends, one for a worker; the first is the head
STARTS = 4  # of a node
ANSWER = 300.0 * PATIENCE  # seconds
LOOPBACK = "127.0.0.1"


class Cluster:
    """The line to the process that holds the cluster: Ray sets signal handlers, which threads of the tries may not."""

    def __init__(self) -> None:
        self._line, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=hold, args=(theirs,))
        self._process.start()
        theirs.close()
        self.address = str(self._ask("whole"))

    def lose(self) -> None:
        """Kill the second node's processes at once."""
        self._ask("lose")

    def whole(self) -> None:
        """Start the nodes that are not there."""
        self._ask("whole")

    def end(self) -> None:
        self._line.close()
        self._process.join()

    def _ask(self, what: str) -> object:
        self._line.send(what)
        if not self._line.poll(ANSWER):
            raise TimeoutError(f"the cluster does not answer within {ANSWER:g} s")
        reply = self._line.recv()
        if isinstance(reply, Exception):
            raise reply
        return reply


_held: list[Cluster] = []
_one_at_a_time = threading.Lock()


@contextmanager
def cluster() -> Iterator[Cluster]:
    """The cluster, with both nodes; no other try has it meanwhile."""
    with _one_at_a_time:
        if not _held:
            _held.append(Cluster())
        _held[0].whole()
        yield _held[0]


def end() -> None:
    """Stop the cluster, if there is one."""
    while _held:
        _held.pop().end()


def hold(line: Connection) -> None:
    """Start the nodes, and do what is asked until nobody listens."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # all is on loopback
    from ray.cluster_utils import Cluster as Nodes

    place = tempfile.mkdtemp(prefix="ray-")  # short: it is part of the names of sockets
    nodes = Nodes()

    def start(cpus: int) -> None:
        there = len(nodes.list_all_nodes())
        for late in range(STARTS):  # Ray gives a node 30 s, and everything else of the tests goes on meanwhile
            try:
                nodes.add_node(num_cpus=cpus, node_ip_address=LOOPBACK, include_dashboard=False, temp_dir=place)
                return
            except Exception:
                for half in nodes.list_all_nodes()[there:]:
                    nodes.remove_node(half, allow_graceful=False)
                if late == STARTS - 1:
                    raise

    try:
        with suppress(EOFError, OSError):
            while asked := line.recv():
                try:
                    if asked == "whole":
                        for cpus in CPUS[len(nodes.list_all_nodes()) :]:
                            start(cpus)
                    else:
                        nodes.remove_node(*nodes.worker_nodes, allow_graceful=False)
                    line.send(nodes.address)
                except Exception as error:
                    line.send(RuntimeError(f"{type(error).__name__}: {error}"))
    finally:
        nodes.shutdown()
        shutil.rmtree(place, ignore_errors=True)
