"""A pool of workers: they take the shards of one run from a queue, and their shards become the run.

Workers are processes on this machine, or of a Ray cluster (ray_workers.py). The driver decodes nothing. A worker that
is lost gives its shard back, and another one continues it; a shard that is lost TRIES times ends the run, and so does
the last worker.
"""

import time
from collections import Counter, deque
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from specbench import permissions
from specbench.base.console import RunProgress, say, warn
from specbench.config import UserError
from specbench.measure import attempts, command, crew
from specbench.measure.crew import Crew, Worker
from specbench.measure.staffing import Staffing
from specbench.measure.worker import Advanced, Ended, Given, Ready, Refused, version
from specbench.methods import with_defaults
from specbench.plan import Plan
from specbench.results.lock import unused
from specbench.results.shard import SHARDS, Shard
from specbench.results.stored import StoredRun

EACH = 2  # shards for each worker, if the run can be cut so: the last ones end at about the same time
TRIES = 3  # of a shard
PATIENCE = 0.2  # seconds between looks at Ctrl-C
LOADING = 1800  # seconds until the first worker must have loaded the models


def run(plan: Plan | None, out: Path | None, resume: Path | None, staffing: Staffing) -> Path | None:
    """Carry out a plan with several workers, in a new folder or in one where its shards have begun.

    Returns:
        The folder if the run finished, else None.

    Raises:
        UserError: the folder cannot be used, workers would share a device that is timed, or no worker is left.
    """
    place = resume or out
    begun = sorted((place / SHARDS).glob("*/manifest.json")) if place else []
    stored = StoredRun(begun[0].parent) if begun else None
    if resume and stored is None:
        raise UserError(f"{resume} holds no shards that workers began; leave out --workers, or start a new run")
    if place and stored is None and not unused(place):
        raise UserError(f"{place} exists; choose another --out")
    if plan is None:
        assert stored
        plan = stored.plan
    plan = staffing.fitted(with_defaults(plan))
    if stored and place:
        command.check_same(plan, stored.plan, place)
    if staffing.ray:
        from specbench.measure import ray_workers

        ray_workers.imported(staffing.ray)
    environments = [] if staffing.ray else staffing.environments(plan)
    folder = place or command.default_folder(plan)
    command.check(plan, folder)
    if not (folder / "manifest.json").exists():
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        if staffing.ray:
            starting = ray_workers.started(plan, folder, staffing.workers, staffing.gpus, staffing.ray)
        else:
            starting = crew.started(plan, folder, environments)
        try:
            finished = _decode(plan, folder, starting, stored.shard.shard.of if stored and stored.shard else None)
        finally:
            with suppress(OSError):  # the folders are not empty
                (folder / SHARDS).rmdir()
                folder.rmdir()
        if not finished:
            say(f"stopped; to go on: specbench run --resume {folder} {staffing.words}{permissions.flags()}")
            return None
    from specbench.measure.join import join  # with torch, which no driver needs before

    join(folder)
    return folder


def _decode(plan: Plan, folder: Path, starting: AbstractContextManager[Crew], count: int | None) -> bool:
    """Have workers decode all shards, `count` if they have begun; False if the user stopped it."""
    with command.stop_requests() as stopping, RunProgress() as bar, starting as everyone:
        pool, begun = Pool(folder, everyone, count, timed=not plan.untimed), time.monotonic()
        try:
            while not pool.finished:
                stopping.waits = pool.busy
                if not pool.documents and time.monotonic() > begun + LOADING:
                    raise UserError(f"no worker has loaded the models within {LOADING / 60:.0f} minutes; see {folder}")
                for worker in pool.heard(PATIENCE):
                    if shown := pool.hear(worker):
                        bar.update(pool.done, pool.documents, shown.task, shown.rounds)
                if stopping.requested and pool.stopped():
                    return False
        except KeyboardInterrupt:
            return False
    return True


class Pool:
    """The queue of shards, and what workers tell of them."""

    def __init__(self, folder: Path, crew: Crew, count: int | None, timed: bool = False) -> None:
        self.folder, self.crew, self.count, self.timed = folder, crew, count, timed
        self.workers = crew.workers
        self.each = EACH * len(self.workers)
        self.documents = 0
        self._queue: deque[Shard] | None = None  # unknown until a worker has read the documents
        self._lost: Counter[Shard] = Counter()
        self._done: dict[int, int] = {}  # documents by the number of their shard
        self._ended = 0
        self._stopping = False

    @property
    def done(self) -> int:
        return sum(self._done.values())

    @property
    def finished(self) -> bool:
        return self._queue is not None and self._ended == self.count

    @property
    def busy(self) -> bool:
        return any(worker.shard for worker in self.workers)

    def heard(self, seconds: float) -> list[Worker]:
        """The workers that have something to tell, or are gone; waits for one so long at most."""
        ready = self.crew.wait([worker.line for worker in self.workers], seconds)
        return [worker for worker in self.workers if worker.line in ready]

    def hear(self, worker: Worker) -> Advanced | None:
        """Take what a worker tells, and send it what it is to do next; returns its progress if it tells that.

        Raises:
            UserError: it refuses the plan, has another version or the device of another one, its shard was lost too
                often, or no worker is left.
        """
        try:
            told = worker.line.recv()
        except (EOFError, OSError):
            self._lose(worker)
            told = None
        if isinstance(told, Refused):
            raise UserError(told.line)
        if isinstance(told, Ready):
            self._check(worker, told)
            worker.ready, worker.device = True, told.device
            self._begin(told)
        if isinstance(told, Ended):
            self._ended += told.finished
            worker.shard = None
        if isinstance(told, Advanced) and worker.shard:
            self._done[worker.shard.number] = told.done
        self._give()
        return told if isinstance(told, Advanced) else None

    def stopped(self) -> bool:
        """Ask workers to stop after their documents; True once all have."""
        if not self._stopping:
            self._stopping = True
            for worker in self.workers:
                with suppress(OSError):
                    worker.line.send(None)
        return not self.busy

    def _check(self, worker: Worker, told: Ready) -> None:
        """Raise UserError if a worker has another version, or shares a device that is timed."""
        if told.version and told.version != version():
            raise UserError(
                f"worker {worker.number} has specbench {told.version}, and this is {version()}: install one version "
                "everywhere"
            )
        sharing = [other.number for other in self.workers if told.device and other.device == told.device]
        if self.timed and sharing:
            raise UserError(
                f"workers {sharing[0]} and {worker.number} share {told.device}, and distort each other's times; add "
                "--untimed to leave times out, or take fewer workers"
            )

    def _begin(self, told: Ready) -> None:
        """Fill the queue with the shards that are not decoded yet."""
        if self._queue is not None:
            return
        self.documents = told.documents
        self.count = self.count or min(told.places, self.each)
        self._queue = deque()
        for shard in (Shard(number, self.count) for number in range(1, self.count + 1)):
            run = attempts.begun(self.folder, shard.number)
            self._done[shard.number] = run.progress[0] if run else 0
            if run and run.decoded:
                self._ended += 1
            else:
                self._queue.append(shard)

    def _give(self) -> None:
        """Send shards to workers that have none."""
        for worker in self.workers:
            if self._queue and worker.ready and not worker.shard and not self._stopping:
                shard = worker.shard = self._queue.popleft()
                with suppress(OSError):  # it is gone, and is lost when it is heard
                    worker.line.send(Given(shard, self._place(shard)))

    def _place(self, shard: Shard) -> Path:
        """The folder in which a shard is decoded, or continued."""
        if self.crew.may_write:
            return attempts.new_attempt(self.folder, shard.number)
        run = attempts.begun(self.folder, shard.number)
        return run.folder if run else shard.folder(self.folder)

    def _lose(self, worker: Worker) -> None:
        """Strike a worker off; its shard goes to another one."""
        self.workers.remove(worker)
        how = f"worker {worker.number} is lost ({worker.end()}; {worker.log} has its last words)"
        again = f"specbench run --resume {self.folder} --workers 1 continues the run"
        if worker.shard and self._queue is not None:
            self._lost[worker.shard] += 1
            if self._lost[worker.shard] >= TRIES:
                raise UserError(f"{worker.shard} was lost {TRIES} times: {how}; {again}")
            self._queue.appendleft(worker.shard)
        if not self.workers:
            raise UserError(f"no worker is left: {how}" + f"; {again}" * (self._queue is not None))
        warn(how + (f"; another one continues {worker.shard}" if worker.shard else ""))
