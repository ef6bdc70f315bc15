"""No gate test is forgotten on a GPU: those that read the device are in the list of `make gpu-check`."""

import subprocess

import gpu_check


def test_all_tests_that_read_the_device_run_there():
    """By grep over all tests, whatever folder they are in."""
    words = ["-e", r"\bDEVICE\b", "-e", 'reason="no GPU"']
    places = [gpu_check.TESTS, gpu_check.TESTS.parent / "extras"]
    found = subprocess.run(["grep", "-rl", "--include=test_*.py", *words, *places], capture_output=True, text=True)
    names = {str(path) for path in gpu_check.gates()}
    assert len(found.stdout.splitlines()) > 20, "grep finds tests at all"
    assert {
        "extras/specbench_extras/cospec/tests/test_cospec_rl.py",
        "tests/measure/test_room.py",
        "tests/engine/test_measure.py",
    } <= {str(path.relative_to(gpu_check.TESTS.parent)) for path in gpu_check.gates()}
    assert set(found.stdout.splitlines()) - {__file__} - names == set()


def test_no_exception_is_out_of_date():
    known = {path.name for folder in gpu_check.FOLDERS for path in folder.rglob("test_*.py")}
    assert known >= set(gpu_check.NOT_GATES)
    assert all(gpu_check.NOT_GATES.values())
