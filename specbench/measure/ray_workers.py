"""Workers of a Ray cluster: an actor for each, which starts a worker process on its node and passes on what it tells.

Actors are never restarted: a restart waits for what a lost node had, and may wait forever. The driver gives the shard
of a lost actor to another one (pool.py), in a folder of its own, since a node that is cut off may still write.
"""

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench import permissions
from specbench.config import UserError
from specbench.measure.crew import Crew, Worker, how_it_ended, log_of, start
from specbench.measure.worker import Work
from specbench.permissions import Permissions

LOCAL = "local"  # which Ray, too, takes for a new cluster of this machine
TOKEN = "if it asks for a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what `ray get-auth-token` prints there"
REACH = 10.0  # seconds for a cluster to answer
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
OUTSIDE = ("192.0.2.1", 9)  # an address that is nobody's (RFC 5737): the way there begins at this machine's outer one


def imported(address: str) -> ModuleType:
    """Ray, set up for a cluster. Raises UserError if it is not installed."""
    if address == LOCAL or only_on_loopback(address):  # read when Ray is imported: loopback is used, as on macOS
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ImportError:
        raise UserError("--ray needs Ray: pip install 'specbench-harness[ray]'") from None
    return ray


def only_on_loopback(address: str) -> bool:
    """True if a loopback address is named, and nothing answers at that port of this machine's outer address.

    Ray takes the outer one instead of the loopback address, and would try for minutes.
    """
    host, _, port = address.rpartition(":")
    if host not in LOOPBACK or not port.isdecimal():
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:  # nothing is sent
            route.connect(OUTSIDE)
            outer = route.getsockname()[0]
        socket.create_connection((outer, int(port)), REACH).close()
    except (OSError, OverflowError):
        return True
    return False


class Relay:
    """An actor: a worker process on its node, and the line to it. It reads and sends at the same time."""

    def __init__(self, number: int, work: Work, granted: Permissions, log: Path, place: str) -> None:
        os.chdir(place)  # a plan and its folder may be named from there
        self.process, self.line = start(number, work, granted, log, {})

    def hear(self) -> Any:
        """What the worker tells next. Raises EOFError, with how it ended, if it is gone."""
        try:
            return self.line.recv()
        except (EOFError, OSError):
            raise EOFError(how_it_ended(self.process)) from None

    def send(self, what: Any) -> None:
        with suppress(OSError):  # it is gone: the next `hear` tells
            self.line.send(what)


class RayLine:
    """The driver's line to a relay."""

    def __init__(self, ray: ModuleType, relay: Any) -> None:
        self.ray, self.relay, self.coming = ray, relay, relay.hear.remote()
        self.end = "its process or node is gone"

    def recv(self) -> Any:
        try:
            message = self.ray.get(self.coming)
        except self.ray.exceptions.RayTaskError as error:
            self.end = str(error.cause)
            raise EOFError from None
        except self.ray.exceptions.RayError:
            raise EOFError from None
        self.coming = self.relay.hear.remote()
        return message

    def send(self, what: Any) -> None:
        self.relay.send.remote(what)


def _check_reachable(address: str) -> None:
    """Raise UserError if nothing answers there; Ray itself tries for minutes."""
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--ray {address}: write HOST:PORT of a cluster, or {LOCAL}")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address}: no cluster can be reached there ({error})") from None


def check_room(nodes: Sequence[Mapping[str, float]], count: int, each: int, device: str) -> int:
    """The GPUs of a worker, by what the nodes of a cluster have. Raises UserError if not all workers find room.

    A worker that finds none is never started, and nothing tells so.
    """
    has = {what: sum(node.get(what, 0) for node in nodes) for what in ("CPU", "GPU")}
    gpus = each * (device != "cpu" and (each > 1 or has["GPU"] > 0))
    for what, needed in (("CPU", count), ("GPU", count * gpus)):
        if needed > has[what]:
            free = f"{has[what]:.0f} {what}{'s' * (has[what] != 1)}"
            raise UserError(f"--workers {count}: the Ray cluster has {free}; take fewer")
    room = sum(int(min(node.get("CPU", 0), node.get("GPU", 0) // gpus if gpus else count)) for node in nodes)
    if room < count:
        raise UserError(
            f"--workers {count}: the Ray cluster's nodes have room for {room}, of a CPU and "
            f"{gpus} GPU{'s' * (gpus != 1)} on one node each; take fewer"
        )
    return gpus


@contextmanager
def started(work: Work, logs: Path, count: int, each: int, address: str, device: str) -> Iterator[Crew]:
    """Actors that do the work, on so many GPUs each where there are any; in the end none of them is left.

    Args:
        work: what a worker does.
        logs: the folder for what workers print.
        count: of workers.
        each: GPUs of a worker.
        address: of a cluster, or LOCAL for one on this machine, which listens on loopback only and ends with the run.
        device: that models are placed on; `cpu` takes no GPUs.

    Raises:
        UserError: Ray is not installed, the cluster cannot be reached, or has too few CPUs or GPUs.
    """
    _check_reachable(address)
    ray, mine = imported(address), signal.getsignal(signal.SIGTERM)
    place: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **place)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"--ray {address}: no cluster can be reached there ({why}); {TOKEN}") from None
    finally:
        signal.signal(signal.SIGTERM, mine)  # which asks to stop, as Ctrl-C does
    relays: list[Any] = []
    try:
        gpus = check_room([node["Resources"] for node in ray.nodes() if node["Alive"]], count, each, device)
        actor = ray.remote(Relay).options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,
            scheduling_strategy="SPREAD",
        )
        workers = []
        for number in range(1, count + 1):
            log = log_of(number, logs)
            relays.append(actor.remote(number, work, permissions.in_force(), log, os.getcwd()))
            line = RayLine(ray, relays[-1])
            workers.append(Worker(number, line, log, lambda line=line: line.end))  # type: ignore[misc]

        def wait(lines: Sequence[RayLine], seconds: float) -> list[RayLine]:
            ready, _ = ray.wait([line.coming for line in lines], num_returns=1, timeout=seconds)
            return [line for line in lines if line.coming in ready]

        yield Crew(workers, wait, may_write=True)
    finally:
        for relay in relays:
            ray.kill(relay)
        ray.shutdown()
