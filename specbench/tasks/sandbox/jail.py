"""Linux system calls that isolate a process: new namespaces, a new file system root, and the loss of all rights.

This module runs in the interpreter that becomes the program's, so it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import resource

from specbench.tasks.sandbox import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOBODY = 65534
WORK = "/tmp"  # the program's only writable place, inside
ROOT = "/sys"  # where the new root is assembled: a folder that every system has and no Python needs
DEVICES = ("null", "zero", "urandom")
MOST_FILES = 1000  # in the writable place

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    *(0x00020000, 0x02000000, 0x04000000, 0x08000000),
    *(0x10000000, 0x20000000, 0x40000000),
)
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
READ_ONLY = 1 | 2 | 4  # MOUNT_ATTR_RDONLY, _NOSUID, _NODEV
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 3, 4, 38, 36
SIGKILL = 9
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: bytes | int | ctypes.Array[Any] | None) -> int:
    """Call a function of libc. Raises OSError with the function's name."""
    result: int = getattr(libc, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def control(option: int, value: int) -> int:
    return call("prctl", option, value, 0, 0, 0)


def die_with_parent() -> None:
    control(PR_SET_PDEATHSIG, SIGKILL)


def unshare() -> None:
    """Put this process into new namespaces of all kinds; the one of process ids holds for its next child.

    Root needs no user namespace: its program becomes nobody. Everyone else becomes nobody in a user namespace.
    """
    user, group = os.geteuid(), os.getegid()
    kinds = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET
    if user == 0:
        try:
            call("unshare", kinds)
            return
        except PermissionError:  # root of a container without the rights of root
            pass
    call("unshare", kinds | NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    try:
        call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def build_root(readable: list[str], hidden: list[str]) -> None:
    """Give this process a new root that holds `readable` and nothing else, read-only, with `hidden` folders empty."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=1000,mode=755")
    for name in (WORK, "/dev", "/proc"):
        os.mkdir(ROOT + name)
    for name in DEVICES:
        os.close(os.open(f"{ROOT}/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
    for path in readable:
        _bind(path)
    for path in hidden:
        mount("tmpfs", ROOT + path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=2,mode=755")
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY, 0, 0, 0)
    call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, ROOT.encode(), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))
    for name in DEVICES:
        mount(f"/dev/{name}", f"{ROOT}/dev/{name}", None, MS_BIND)
    os.chdir(ROOT)
    call("syscall", _pivot_root(), b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _bind(path: str) -> None:
    target = ROOT + path
    if os.path.lexists(target):  # a folder above it was bound before
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(path, target, None, MS_BIND | MS_REC)


def _pivot_root() -> int:
    return 155 if os.uname().machine == "x86_64" else 41


def make_work(size: int) -> None:
    """Make a writable folder of at most `size` bytes and change to it."""
    options = f"size={size},nr_inodes={MOST_FILES},mode=1777"
    mount("tmpfs", WORK, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(WORK)


def give_up_rights(limits: dict[str, int], become_nobody: bool) -> None:
    """Set the limits, then drop all capabilities, all ways to gain one, and all system calls no program needs."""
    for name, value in limits.items():
        which = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    if become_nobody:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    control(PR_SET_NO_NEW_PRIVS, 1)
    die_with_parent()  # a change of user resets it
    syscalls.refuse(libc)
