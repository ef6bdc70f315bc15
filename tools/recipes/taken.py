"""How the figures of a recipe were taken, as their file says it."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from specbench.base import environment


def taken(device: torch.device) -> dict[str, Any]:
    """The command, the commit, the day and the machine."""
    name, *arguments = sys.argv
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "command": " ".join(["python", f"tools/recipes/{Path(name).name}", *arguments]),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": environment.describe(device),
    }
