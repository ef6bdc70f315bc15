"""No gate test is forgotten on a GPU: those that read the device are in the list of `make gpu-check`."""

import gpu_check


def test_all_tests_that_read_the_device_run_there():
    names = {path.name for path in gpu_check.gates()}
    for folder in gpu_check.FOLDERS:
        for path in (gpu_check.TESTS / folder).rglob("test_*.py"):
            if "DEVICE" in path.read_text():
                assert path.name in names, f"{path.name} reads the device; take it out of NOT_GATES"


def test_no_exception_is_out_of_date():
    known = {path.name for folder in gpu_check.FOLDERS for path in folder.rglob("test_*.py")}
    assert known >= set(gpu_check.NOT_GATES)
    assert all(gpu_check.NOT_GATES.values())
