"""A pool of workers: they take the shards of one run from a queue, and their shards become the run.

Workers are processes on this machine, or of a Ray cluster (ray_workers.py). The driver decodes nothing. A worker that
is lost gives its shard back, and another one continues it (queue.py).
"""

import shutil
from collections import deque
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from specbench import permissions
from specbench.base.console import RunProgress, say
from specbench.base.folder import is_leftover
from specbench.config import UserError
from specbench.measure import attempts, command, gate
from specbench.measure.crew import LOG, Crew, Worker
from specbench.measure.queue import Queue, check_version, starter
from specbench.measure.staffing import Staffing
from specbench.measure.worker import Advanced, Ended, Given, Ready, decode
from specbench.methods import with_defaults
from specbench.plan import Plan
from specbench.results.lock import LOCK, unused
from specbench.results.shard import SHARDS, Shard
from specbench.results.stored import StoredRun

EACH = 4  # shards for each worker, if the run can be cut so: at the end a worker waits for one of them at most


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
        again = f"give the command of the run again, with --out {resume}" if _unbegun(resume) else "start a new run"
        raise UserError(f"{resume} holds no shards that workers began; leave out --workers, or {again}")
    if place and stored is None and not (unused(place) or _unbegun(place)):
        raise UserError(f"{place} exists; choose another --out")
    if plan is None:
        assert stored
        plan = stored.plan
        permissions.check_keys(plan)
    plan = staffing.fitted(with_defaults(plan))
    if stored and place:
        command.check_same(plan, stored.plan, place)
    start = starter(staffing, plan.device, timed=not plan.untimed)
    folder = place or command.default_folder(plan)
    command.check_disk(folder)
    gate.admit(plan)
    if not (folder / "manifest.json").exists():
        (folder / SHARDS).mkdir(parents=True, exist_ok=True)
        starting = start(partial(decode, plan), folder / SHARDS)
        try:
            finished = _decode(plan, folder, starting, stored.shard.shard.of if stored and stored.shard else None)
        finally:
            with suppress(OSError):  # the folders are not empty
                (folder / SHARDS).rmdir()
                folder.rmdir()
        if not finished and _unbegun(folder):
            shutil.rmtree(folder / SHARDS)
            with suppress(OSError):  # there may be leftovers of an earlier run
                folder.rmdir()
            say("stopped before the first document; nothing was written")
            return None
        if not finished:
            say(f"stopped; to go on: specbench run --resume {folder} {staffing.words}{permissions.flags_of(plan)}")
            return None
    from specbench.measure.join import join  # with torch, which no driver needs before

    join(folder)
    return folder


def _unbegun(folder: Path) -> bool:
    """True if a folder holds nothing but what workers leave that have begun no shard: locks, and what they printed."""
    if not (folder / SHARDS).is_dir():
        return False
    others = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return all(path.name == LOCK or is_leftover(path.name) or LOG.fullmatch(path.name) for path in others)


def _decode(plan: Plan, folder: Path, starting: AbstractContextManager[Crew], count: int | None) -> bool:
    """Have workers decode all shards, `count` if they have begun; False if the user stopped it."""
    with command.stop_requests() as stopping, RunProgress() as bar, starting as everyone:
        pool = ShardPool(folder, everyone, count, timed=not plan.untimed)
        try:
            while not pool.finished:
                stopping.waits = pool.busy
                for worker in pool.heard():
                    if shown := pool.hear(worker):
                        bar.update(pool.done, pool.documents, shown.task, shown.rounds)
                if stopping.requested and pool.stopped():
                    return False
        except KeyboardInterrupt:
            return False
    return True


class ShardPool(Queue[Shard]):
    """The queue of shards, and what workers tell of them."""

    def __init__(self, folder: Path, crew: Crew, count: int | None, timed: bool = False) -> None:
        super().__init__(crew, f"; specbench run --resume {folder} --workers 1 continues the run")
        self.folder, self.count, self.timed = folder, count, timed
        self.each = EACH * len(self.workers)
        self.documents = 0
        self._done: dict[int, int] = {}  # documents by the number of their shard
        self._ended = 0
        self._stopping = False

    @property
    def done(self) -> int:
        return sum(self._done.values())

    @property
    def finished(self) -> bool:
        return self.waiting is not None and self._ended == self.count

    def hear(self, worker: Worker) -> Advanced | None:
        """Take what a worker tells, and send it what it is to do next; returns its progress if it tells that.

        Raises:
            UserError: it refuses the plan, has another version or the device of another one, its shard was lost too
                often, or no worker is left.
        """
        message = self.receive(worker)
        if isinstance(message, Ready):
            self._check(worker, message)
            worker.ready, worker.device = True, message.device
            self._begin(message)
        if isinstance(message, Ended):
            self._ended += message.finished
            worker.item = None
        if isinstance(message, Advanced) and worker.item:
            self._done[worker.item.number] = message.done
        if not self._stopping:
            self.give(lambda shard: Given(shard, self._place(shard)))
        return message if isinstance(message, Advanced) else None

    def stopped(self) -> bool:
        """Ask workers to stop after their documents; True once all have."""
        if not self._stopping:
            self._stopping = True
            for worker in self.workers:
                with suppress(OSError):
                    worker.line.send(None)
        return not self.busy

    def _check(self, worker: Worker, ready: Ready) -> None:
        """Raise UserError if a worker has another version, or shares a device that is timed."""
        check_version(worker, ready.version)
        sharing = [other.number for other in self.workers if ready.device and other.device == ready.device]
        if self.timed and sharing:
            raise UserError(
                f"workers {sharing[0]} and {worker.number} share {ready.device}, and distort each other's times; add "
                "--untimed to leave times out, or take fewer workers"
            )

    def _begin(self, ready: Ready) -> None:
        """Fill the queue with the shards that are not decoded yet."""
        if self.waiting is not None:
            return
        self.documents = ready.documents
        self.count = self.count or min(ready.places, self.each)
        self.waiting = deque()
        for shard in (Shard(number, self.count) for number in range(1, self.count + 1)):
            run = attempts.begun(self.folder, shard.number)
            self._done[shard.number] = run.progress[0] if run else 0
            if run and run.decoded:
                self._ended += 1
            else:
                self.waiting.append(shard)

    def _place(self, shard: Shard) -> Path:
        """The folder in which a shard is decoded, or continued."""
        if self.crew.may_write:
            return attempts.new_attempt(self.folder, shard.number)
        run = attempts.begun(self.folder, shard.number)
        return run.folder if run else shard.folder(self.folder)
