"""An nvidia-smi that prints what a test gives it."""

import pytest

SMI = """#!/bin/sh
case "$*" in
*clocks_event_reasons*) [ -n "$OLD_DRIVER" ] && { echo 'Field "clocks_event_reasons.active" is not valid'; exit 2; } ;;
esac
case "$*" in
*loop-ms*) cat "$SMI_LOOKS"; exec sleep 60 ;;
*ecc*) cat "$SMI_FACTS" ;;
*) cat "$SMI_ROWS" ;;
esac
"""
IDLE = "0, GPU-aaaa, NVIDIA H100 80GB HBM3, 0, 4, 31, 0x0000000000000001"
HOT = "1, GPU-bbbb, NVIDIA H100 80GB HBM3, 97, 60123, 88, 0x0000000000000024"
FACTS = "0, 345, 1980, [N/A], 3201, 71.5, 700.00, 31, Enabled, 0, Enabled"
LOOKS = ("0, 1980, 3201, 310.5, 51, 1200, 0x0000000000000000", "0, 1755, 3201, 699.9, 83, 1300, 0x0000000000000000")
HEAT = "0, 1200, 3201, 512.0, 88, 1300, 0x0000000000000020"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A function that gives it the rows of all GPUs; `looks` are those that it prints while it watches."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    files = {name: tmp_path / name for name in ("SMI_ROWS", "SMI_FACTS", "SMI_LOOKS")}
    for name, path in files.items():
        monkeypatch.setenv(name, str(path))

    def told(*rows: str, facts: str = FACTS, looks: tuple[str, ...] = LOOKS) -> None:
        for path, lines in zip(files.values(), (rows, (facts,), looks), strict=True):
            path.write_text("".join(f"{line}\n" for line in lines))

    return told
