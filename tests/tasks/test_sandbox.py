"""What the sandbox lets pass, what it stops, and what it leaves behind."""

import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forging import FORGING, TESTS
from sandboxed import each_kind, lacking

from specbench.base.errors import UserError
from specbench.tasks import sandbox
from specbench.tasks.sandbox import STDERR_TAIL, Isolation, Outcome, launch
from specbench.tasks.sandbox.syscalls import filter_code
from specbench.tasks.sandbox.unit_tests import UnitTests

GOOD = "def add(a, b):\n    return a + b\n"


def passes(program: str, tests: UnitTests = launch.NO_TESTS, **limits: float) -> Outcome:
    return sandbox.passes(program, tests, **limits)


def test_a_right_solution_passes() -> None:
    assert passes(GOOD, TESTS) == Outcome(True, "passed", "")


def test_a_wrong_solution_fails_with_its_error() -> None:
    assert passes(GOOD.replace("+", "-"), TESTS) == Outcome(False, "failed", "AssertionError")


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("def f(:", "SyntaxError: "),
        ("def f():\n    f()\nf()", "RecursionError: "),
        ("import torch", "ModuleNotFoundError: "),
        ("input()", "EOFError: "),
    ],
)
def test_errors_fail(program: str, detail: str) -> None:
    outcome = passes(program)
    assert (outcome.passed, outcome.reason) == (False, "failed")
    assert outcome.detail.startswith(detail)


def test_text_that_is_no_program_is_an_outcome() -> None:
    for program in ("", "\ud800", "x = 1\n\0"):
        assert passes(program).passed is (program == "")


def test_a_comment_on_the_encoding_says_nothing_of_a_text() -> None:
    """As in `exec`: the bytes of this word would be two letters in Latin-1."""
    program = "# coding: latin-1\ndef f(): return 'é'"
    assert sandbox.passes(program, UnitTests("# coding: latin-1\nassert f() == 'é' == '\\xe9'", ("f",))).passed


def test_half_a_character_in_an_error_is_an_error() -> None:
    outcome = sandbox.passes("def f(): raise ValueError('\\ud800')", UnitTests("f()", ("f",)))
    assert outcome == Outcome(False, "failed", "ValueError: ?")


def test_memory_is_limited() -> None:
    program = "data = bytearray({} << 20)"
    assert passes(program.format(64), memory_mb=512).passed
    assert passes(program.format(1024), memory_mb=512) == Outcome(False, "failed", "MemoryError")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("the end of life: leave with status 0", "exited"),
        ("the end of life: leave by exception", "failed"),
        ("the end of life: leave when asked", "exited"),
        ("signals: death", "killed"),
        ("descriptors: closed", "exited"),
        ("answers out of turn: garbage", "exited"),
    ],
)
def test_how_a_program_ended(name: str, reason: str) -> None:
    outcome = passes(FORGING[name], TESTS)
    assert (outcome.passed, outcome.reason) == (False, reason)


def test_tests_that_do_not_end_time_out() -> None:
    assert passes("", UnitTests("while True: pass"), seconds=0.5).reason == "timeout"
    assert passes("", UnitTests("import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)")).reason == "timeout"
    assert passes("", UnitTests("import os\nos._exit(0)")).reason == "exited"


def test_a_flood_of_output_is_dropped() -> None:
    assert passes("for _ in range(3000): print('x' * 10000)").passed
    outcome = passes("import sys\nfor _ in range(3000): sys.stderr.write('x' * 10000)\nassert 0")
    assert outcome == Outcome(False, "failed", "AssertionError")
    assert len(passes("import sys\nwhile True: sys.stderr.write('x' * 10000)", seconds=0.5).detail) <= STDERR_TAIL


def test_the_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_SECRET", "hush")
    assert passes("import os\nassert set(os.environ) <= {'LC_CTYPE'}, os.environ").passed


def test_a_program_has_an_empty_folder_and_others_do_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = "import os\nassert not os.listdir()\nopen('left', 'w').write('x')\nassert os.listdir() == ['left']\n"
    for _ in range(2):
        assert passes(program).passed
    assert not os.listdir(tmp_path)


def test_only_limits_alone_need_a_folder_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(launch.tempfile, "mkdtemp", lambda *names: made.append(str(names)) or os.devnull)
    for kind in sandbox.COMPLETE:
        if sandbox.problem_of(kind) is None:
            assert sandbox.run_in(kind, "pass", seconds=5, memory_mb=512).passed
    assert not made


LEAVING = {
    "a file": "open('left', 'w').write('x')",
    "folders, a thousand deep": "for _ in range(1000):\n    os.mkdir('d')\n    os.chdir('d')\nopen('left', 'w')",
    "many folders": "for i in range(300): os.makedirs(f'{i}/{i}')",
    "a folder without rights": "os.makedirs('a/b')\nopen('a/b/left', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
    "no folder": "os.rmdir(here)",
    "a link in its folder's place": "os.symlink({outside!r}, 'a')\nos.makedirs('b')\nos.symlink({outside!r}, 'b/c')",
    "a link that the cleaning would change": "os.mkdir('a')\nos.symlink({outside!r}, 'a/b')\nos.chmod('a', 0)",
}


@pytest.mark.parametrize("name", LEAVING)
def test_limits_alone_give_a_folder_that_goes(name: str, tmp_path: Path) -> None:
    """However deep it nests, and wherever its links lead; the next program is as well off."""
    (tmp_path / "kept").write_text("x")
    os.chmod(tmp_path, 0o755)
    leaves = LEAVING[name].replace("{outside!r}", repr(str(tmp_path)))
    program = f"import os, sys\nhere = os.getcwd()\nprint(here, file=sys.stderr)\n{leaves}"
    outcome = sandbox.run_in("limits", program, seconds=8, memory_mb=512)
    assert outcome.detail.startswith("/"), outcome
    assert not Path(outcome.detail).exists()
    assert (tmp_path / "kept").exists() and tmp_path.stat().st_mode & 0o777 == 0o755
    assert sandbox.run_in("limits", "open('file', 'w').write('x')", seconds=8, memory_mb=512).passed


def test_starting_costs_little_and_nothing_stays_open() -> None:
    passes("pass")
    before = len(os.listdir("/proc/self/fd"))
    taken, plain = [], []
    for _ in range(8):
        start = time.monotonic()
        passes("pass")
        taken.append(time.monotonic() - start)
        start = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", "import ctypes, resource"], check=True)
        plain.append(time.monotonic() - start)
    assert min(taken) < 6 * min(plain)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def fresh():
    """Isolation is tried again, now and afterwards."""
    sandbox.isolation.cache_clear()
    yield
    sandbox.isolation.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_best_isolation_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: dict[str, str | None] = {"bubblewrap": None, "namespaces": None}
    monkeypatch.setattr(sandbox, "problem_of", problems.get)
    assert sandbox.isolation() == Isolation("bubblewrap", True, "")
    sandbox.isolation.cache_clear()
    problems["bubblewrap"] = "not here"
    assert sandbox.isolation() == Isolation("namespaces", True, "")
    sandbox.isolation.cache_clear()
    problems["namespaces"] = "not allowed"
    means = sandbox.isolation()
    assert (means.name, means.complete) == ("limits", False)
    reach = "read every file that all users can" if os.getuid() == 0 else "read and write every file that you can"
    assert reach in means.missing
    assert means.missing.endswith("(bubblewrap: not here; namespaces: not allowed)") and "\n" not in means.missing
    assert passes("pass").passed


@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_that_may_not_become_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without rights: its programs are root, and the isolation says so by its name."""

    def refused(folder: str) -> None:
        raise UserError("the sandbox for generated programs did not start: Operation not permitted")

    monkeypatch.setattr(sandbox, "problem_of", {"bubblewrap": "not here", "namespaces": "not allowed"}.get)
    monkeypatch.setattr(launch, "_give_away", refused)
    means = sandbox.isolation()
    assert (means.name, means.complete) == ("unsafe", False)
    assert "run as root" in means.missing and "read and write every file of root's" in means.missing
    assert means.missing.endswith("limits: Operation not permitted)")
    assert passes("import os\nassert os.getuid() == 0 and not os.listdir()\nopen('left', 'w').write('x')").passed
    assert passes("import os\nassert not os.listdir()").passed
    assert not passes("import os\nos.fork()").passed and not passes("import socket\nsocket.socket()").passed


def test_an_isolation_that_leaves_something_open_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe looks; it does not believe that a call which did not fail has shut something."""
    if why := lacking("namespaces"):
        pytest.skip(why)
    assert sandbox.problem_of("namespaces") is None
    modules = launch._modules()
    without = compile("def refuse(libc): pass", "syscalls.py", "exec")
    monkeypatch.setattr(launch, "_modules", lambda: [("syscalls", without), *modules[1:]])
    monkeypatch.setattr(launch, "PROCESSES", 50)
    assert sandbox.problem_of("namespaces") == "AssertionError: it can start processes"
    monkeypatch.setattr(launch, "_modules", lambda: modules)
    readable = [*launch.readable(), "/var/tmp"]
    monkeypatch.setattr(launch, "readable", lambda: readable)
    assert sandbox.problem_of("namespaces") == "AssertionError: other folders are there"


def test_a_sandbox_that_does_not_start_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.isolation()
    monkeypatch.setattr(launch, "_interpreter", lambda: "/bin/false")
    monkeypatch.setattr(launch, "_bubblewrap", lambda: [])
    with pytest.raises(UserError, match="did not start"):
        passes("pass")


def _answer(code: bytes, architecture: int, number: int, argument: int = 0, second: int = 0, third: int = 0) -> int:
    """What the kernel would make of a filter: an interpreter of the instructions that are used."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, argument, second, third, *[0] * 3)
    accumulator, at = 0, 0
    while True:
        operation, true, false, value = struct.unpack_from("<HBBI", code, at * 8)
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x15:
            at += true if accumulator == value else false
        elif operation == 0x35:
            at += true if accumulator >= value else false
        elif operation == 0x45:
            at += true if accumulator & value else false
        else:
            assert operation == 0x06
            return value


# What a program is refused, by name, and its numbers in the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl
# and, for 64-bit ARM, include/uapi/asm-generic/unistd.h); None where a machine has no such call.
PROCESSES = {"clone": (56, 220), "fork": (57, None), "vfork": (58, None)}
MISSING = {"clone3": (435, 435), "memfd_create": (319, 279), "openat2": (437, 437)}
SIGNALS = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
REFUSED = {
    "socket": (41, 198), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201), "shmget": (29, 194),
    "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "modify_ldt": (154, None), "statmount": (457, 457),
    "listmount": (458, 458), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268),
    "unshare": (272, 97), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "init_module": (175, 105),
    "delete_module": (176, 106), "finit_module": (313, 273), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "personality": (135, 92), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "memfd_secret": (447, 447), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "flock": (73, 32), "mknod": (133, None),
    "mknodat": (259, 33), "sync": (162, 81), "syncfs": (306, 267), "sync_file_range": (277, 84), "io_setup": (206, 0),
    "io_destroy": (207, 1), "io_getevents": (208, 4), "io_submit": (209, 2), "io_cancel": (210, 3),
    "io_pgetevents": (333, 292), "setpriority": (141, 140), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
IDLE = {
    "fsync": (74, 82), "fdatasync": (75, 83), "msync": (26, 227), "fadvise64": (221, 223),
}  # fmt: skip
# Commands of fcntl and ioctl that name whom a file shall signal: F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP;
# and those of locks and watches: F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY.
FILES = {"fcntl": (72, 25), "ioctl": (16, 29)}
OWNING = (8, 10, 15, 0x8901, 0x8902, 6, 7, 37, 38, 1024, 1026)


@pytest.mark.parametrize(
    ("machine", "architecture", "column"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)], ids=["x86", "arm"]
)
def test_every_number_of_the_kernels_table_has_its_answer(machine: str, architecture: int, column: int) -> None:
    """What is named above is refused, each in its way; every other number up to 500 is not."""
    code = filter_code(machine, own_id=77)
    assert code is not None and len(code) // 8 < 4096
    allow, refuse = 0x7FFF0000, 0x00050000
    read = (0, 63)[column]
    assert _answer(code, architecture, 0x40000000 + read) == refuse | errno.EPERM
    assert _answer(code, 0x40000003, read) == 0x80000000, "calls of the 32-bit machine end the process"
    answers = ((PROCESSES, errno.EAGAIN), (MISSING, errno.ENOSYS), (SIGNALS, errno.EPERM))
    answers += ((REFUSED, errno.EPERM), (IDLE, 0))
    expected = dict.fromkeys(range(500), allow)
    expected[(302, 261)[column]] = refuse | errno.EPERM  # prlimit64 of another process
    for table, answer in answers:
        expected |= {row[column]: refuse | answer for row in table.values() if row[column] is not None}
    by_name = {number: _answer(code, architecture, number, argument=76) for number in expected}
    assert {n: by_name[n] for n in by_name if by_name[n] != expected[n]} == {}
    limits = [_answer(code, architecture, (302, 261)[column], to) for to in (77, 0)]
    assert limits == [allow, allow], "its own limits, by its number or as 0"
    everybody = [_answer(code, architecture, SIGNALS["kill"][column], to) for to in (0, 2**32 - 1)]
    assert everybody == [refuse | errno.EPERM] * 2
    for row in SIGNALS.values():
        assert _answer(code, architecture, row[column], argument=77) == allow
    for row in FILES.values():
        asked = {command: _answer(code, architecture, row[column], 3, command) for command in (*OWNING, 1, 3, 0x5401)}
        assert [command for command in asked if asked[command] == refuse | errno.EPERM] == list(OWNING)
        assert {asked[command] for command in (1, 3, 0x5401)} == {allow}
    # SOCK_STREAM with SOCK_CLOEXEC and SOCK_NONBLOCK; SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET
    pairs = [_answer(code, architecture, (53, 199)[column], 1, kind | 0x80800) for kind in (1, 2, 3, 5)]
    assert pairs == [allow, *[refuse | errno.EPERM] * 3]
    # PR_SET_PDEATHSIG and PR_SET_NAME; O_CREAT | O_RDWR with and without O_SYNC
    assert [_answer(code, architecture, (157, 167)[column], option) for option in (1, 15)] == [
        refuse | errno.EPERM,
        allow,
    ]
    flags = (0o102, 0o4010102)
    assert [_answer(code, architecture, (257, 56)[column], 1, 1, each) for each in flags] == [
        allow,
        refuse | errno.EPERM,
    ]


def test_a_machine_that_nobody_knows_has_no_filter() -> None:
    assert filter_code("vax", 77) is None


# Signals by way of a file: the kernel sends them to whom the file belongs when something is written to it.
OWNER = """
import fcntl, os, struct
reader, writer = os.pipe()
for reach in (
    lambda: fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid()),
    lambda: fcntl.fcntl(reader, 15, struct.pack("ii", 1, os.getppid())),
    lambda: fcntl.fcntl(reader, fcntl.F_SETSIG if hasattr(fcntl, "F_SETSIG") else 10, 9),
    lambda: fcntl.ioctl(reader, 0x8901, struct.pack("i", os.getppid())),
):
    try:
        reach()
    except PermissionError:
        continue
    raise AssertionError("a file may signal another process")
assert fcntl.fcntl(reader, fcntl.F_GETFL) == os.O_RDONLY
"""


@each_kind
def test_no_process_is_signalled_by_way_of_a_file(kind: str) -> None:
    assert sandbox.run_in(kind, OWNER, seconds=5, memory_mb=512) == Outcome(True, "passed", "")


def test_a_program_that_ends_its_watcher_has_failed_and_the_next_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sandbox.run_in

    def run_in(kind: str, program: str, *tests: UnitTests, **given: float) -> Outcome:
        if program == "murder":
            raise UserError("the sandbox for generated programs did not start: it ended without a word")
        return own(kind, program, *tests, **given)

    monkeypatch.setattr(sandbox, "run_in", run_in)
    assert passes("murder").reason == "killed" and passes("x = 1").passed
