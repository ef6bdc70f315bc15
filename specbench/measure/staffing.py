"""How many workers decode a run, where they are, and which devices each of them has."""

import os
from dataclasses import dataclass

from specbench.config import UserError
from specbench.plan import Plan


@dataclass(frozen=True)
class Staffing:
    """The workers that a command line asks for."""

    workers: int
    ray: str | None = None  # the address of a cluster that they are of, or `local`; None: processes on this machine
    gpus: int = 1  # of each worker, where there are any

    @property
    def words(self) -> str:
        """The options that ask for them."""
        cluster = f" --ray {self.ray}" if self.ray else ""
        several = f" --gpus-per-worker {self.gpus}" if self.gpus > 1 else ""
        return f"--workers {self.workers}{several}{cluster}"

    def fitted(self, plan: Plan) -> Plan:
        """The plan as workers carry it out. Raises UserError as `device`."""
        return plan.model_copy(update={"device": self.device(plan.device)})

    def device(self, asked: str) -> str:
        """The device of a worker: a target is spread over all GPUs of a worker that has several.

        Raises:
            UserError: what is asked for is a device that workers cannot have.
        """
        if self.gpus > 1 and asked == "cpu":
            raise UserError("--gpus-per-worker is for GPUs; leave it out, or --device cpu")
        if asked == "spread" and self.gpus == 1:
            raise UserError(
                "--device spread needs --gpus-per-worker: over how many GPUs each worker spreads the target"
            )
        if ":" in asked:
            raise UserError(f"--workers gives each worker GPUs of its own; leave out --device {asked}")
        return "spread" if self.gpus > 1 else asked

    def environments(self, device: str, timed: bool = True) -> list[dict[str, str]]:
        """The environment of each worker on this machine: GPUs of its own, or a share of the cores.

        Raises:
            UserError: there are too few GPUs for a worker; or some would share a device, and times are taken.
        """
        from specbench.measure.gpus import read_gpus

        gpus = [] if device == "cpu" else [gpu.index for gpu in read_gpus("spread")]
        if self.gpus > max(1, len(gpus)):
            raise UserError(
                f"--gpus-per-worker {self.gpus}: this machine has {_counted(len(gpus), 'GPU')}; give a worker fewer"
            )
        groups = [gpus[first : first + self.gpus] for first in range(0, len(gpus) - self.gpus + 1, self.gpus)]
        if self.workers > max(1, len(groups)) and timed:
            each = f", {self.gpus} for each worker" if self.gpus > 1 else ""
            have = f"there {'is' if len(gpus) == 1 else 'are'} {_counted(len(gpus), 'GPU')}{each}"
            raise UserError(
                f"--workers {self.workers}: {have if gpus else 'there is one device, the CPU'}, and workers that share "
                "one distort each other's times; add --untimed to leave times out, or take fewer"
            )
        if groups:
            return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[n % len(groups)])} for n in range(self.workers)]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // self.workers)))
        return [{"OMP_NUM_THREADS": threads}] * self.workers


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
