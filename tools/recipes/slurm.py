"""Shards of a run as an array of Slurm jobs, which continue after a preemption.

    pip install 'specbench-harness[slurm]'
    python tools/recipes/slurm.py --shards 4 --out /shared/cut --partition gpu -- --method csd --suite math
    specbench join /shared/cut

What follows `--` are options of `specbench run`. Slurm tells a job before it preempts it (`--signal`, which submitit
sets): the job then lets its document be finished, is queued again, and goes on with the next one. A job that is killed
without a word loses the document under way. Jobs and logs are in OUT/jobs.
"""

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import submitit

GRACE = 120  # seconds from Slurm's signal to the end of a job: for a document to be finished
MINUTES = 720  # of a job; one that is not done by then is queued again


@dataclass
class Shard:
    """A job: one shard of a run, which can be stopped and continued."""

    number: int
    of: int
    out: Path
    words: list[str]
    process: "subprocess.Popen[bytes] | None" = field(default=None, compare=False)

    def __call__(self) -> int:
        part = ["--shard", f"{self.number}/{self.of}", "--out", str(self.out)]
        self.process = subprocess.Popen([sys.executable, "-m", "specbench.cli", "run", *self.words, *part])
        if code := self.process.wait():
            raise RuntimeError(f"shard {self.number} of {self.of} ended with exit code {code}; see the lines above")
        return code

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Stop after the document under way; the same shard is submitted again."""
        if self.process:
            self.process.terminate()
            with suppress(ChildProcessError):  # it has ended; `wait`, which this interrupts, holds a lock
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Shard(self.number, self.of, self.out, self.words))


def executor(options: argparse.Namespace) -> submitit.Executor:
    """Of Slurm, or of this machine with --local, which shows how a preemption ends."""
    logs = options.out / "jobs"
    if options.local:
        made: submitit.Executor = submitit.LocalExecutor(logs)
        made.update_parameters(timeout_min=MINUTES, gpus_per_node=0)
        return made
    made = submitit.SlurmExecutor(logs, max_num_timeout=1000)
    parameters = {"job_name": "specbench", "time": MINUTES, "signal_delay_s": GRACE, "gpus_per_node": options.gpus}
    parameters |= {"partition": options.partition} if options.partition else {}
    made.update_parameters(**parameters, additional_parameters={"requeue": True})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder that all nodes see")
    parser.add_argument("--partition")
    parser.add_argument("--gpus", type=int, default=1, help="of each job")
    parser.add_argument("--local", action="store_true", help="jobs on this machine, one after another")
    parser.add_argument("words", nargs="+", metavar="OPTION", help="of `specbench run`, after --")
    options = parser.parse_args()
    options.out = options.out.absolute()
    shards = [Shard(number, options.shards, options.out, options.words) for number in range(1, options.shards + 1)]
    queue = executor(options)
    if not options.local:
        jobs = queue.submit_array(shards)
        print(f"jobs {', '.join(job.job_id for job in jobs)}; when all are done: specbench join {options.out}")
        return
    for shard in shards:
        queue.submit(shard).result()
    print(f"all are done: specbench join {options.out}")


if __name__ == "__main__":
    main()
