"""The system calls that a generated program is refused, as a filter for the kernel (seccomp).

The filter lists what no unit test needs and what leads out of a sandbox: other processes, the network, mounts,
namespaces, the kernel's own loaders, memory that the limits do not count, memory and queues of others, watches and
locks on their files, their scheduling, storms on the disk. It adds to the namespaces where they are available, and is
the only protection where they are not. The numbers are those of Linux on x86-64 and on 64-bit ARM.

This module runs in the interpreter that becomes the program's, so it imports nothing but the standard library.
"""

import ctypes
import errno
import os
import struct
import sys

NEWER = (  # 424 and up: one number on all machines
    *(424, 434, 438, 448),  # pidfd_send_signal, pidfd_open, pidfd_getfd, process_mrelease
    *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    *(428, 429, 430, 431, 432, 433, 442, 467),  # open_tree, move_mount, fs*, mount_setattr, open_tree_attr
    *(440, 443, 447),  # process_madvise, quotactl_fd, memfd_secret
    *(457, 458),  # statmount, listmount
)
# The audit number of the machine, then the numbers of system calls by how the filter treats them.
MACHINES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "x86_64": (
        0xC000003E,
        {
            "fork": (56, 57, 58),  # clone, fork, vfork
            "signal": (62, 200, 234, 129, 297),  # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
            "limit": (302,),  # prlimit64
            "owner": (72, 16),  # fcntl, ioctl
            "pair": (53,),  # socketpair
            "self": (157,),  # prctl
            "open": (2,),
            "open at": (257,),
            "absent": (319,),  # memfd_create
            "idle": (74, 75, 26, 221),  # fsync, fdatasync, msync, fadvise64: they would be done, and are not
            "refused": (
                *(41, 49, 42, 50),  # socket, bind, connect, listen
                *(29, 30, 31, 64, 65, 66, 220),  # shmget, shmat, shmctl, semget, semop, semctl, semtimedop
                *(68, 69, 70, 71, 240, 241),  # msgget, msgsnd, msgrcv, msgctl, mq_open, mq_unlink
                *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
                *(165, 166, 155, 161, 308, 272),  # mount, umount2, pivot_root, chroot, setns, unshare
                *(248, 249, 250, 321, 298, 323),  # add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd
                *(175, 176, 313, 246, 320, 169),  # init_module, delete_module, finit_module, kexec_*, reboot
                *(167, 168, 135, 163, 179, 103),  # swapon, swapoff, personality, acct, quotactl, syslog
                *(164, 227, 159, 305, 170, 171),  # settimeofday, clock_settime, *adjtime*, set*name
                *(172, 173, 303, 304),  # iopl, ioperm, name_to_handle_at, open_by_handle_at
                *(300, 301, 253, 254, 255, 294),  # fanotify_*, inotify_*
                *(73, 133, 259, 162, 306, 277),  # flock, mknod, mknodat, sync, syncfs, sync_file_range
                *(
                    206,
                    207,
                    208,
                    209,
                    210,
                    333,
                ),  # io_setup, io_destroy, io_getevents, io_submit, io_cancel, io_pgetevents
                *(141, 142, 144, 203, 314, 251),  # setpriority, sched_set*, ioprio_set
                *(256, 279, 154),  # migrate_pages, move_pages, modify_ldt
            ),
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "fork": (220,),
            "signal": (129, 130, 131, 138, 240),
            "limit": (261,),
            "owner": (25, 29),
            "pair": (199,),
            "self": (167,),
            "open": (),
            "open at": (56,),
            "absent": (279,),
            "idle": (82, 83, 227, 223),
            "refused": (
                *(198, 200, 203, 201),
                *(194, 196, 195, 190, 193, 191, 192),
                *(186, 189, 188, 187, 180, 181),
                *(117, 270, 271, 272),
                *(40, 39, 41, 51, 268, 97),
                *(217, 218, 219, 280, 241, 282),
                *(105, 106, 273, 104, 294, 142),
                *(224, 225, 92, 89, 60, 116),
                *(170, 112, 171, 266, 161, 162),
                *(264, 265),
                *(262, 263, 26, 27, 28),
                *(32, 33, 81, 267, 84),
                *(0, 1, 2, 3, 4, 292),
                *(140, 118, 119, 122, 274, 30),
                *(238, 239),
            ),
        },
    ),
}
CLONE3, OPENAT2 = 435, 437
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, HAS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
FIRST_ARGUMENT, SECOND_ARGUMENT, THIRD_ARGUMENT = 16, 24, 32  # of low words
# F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP: signals by way of a file; then F_SETLK, F_SETLKW, F_OFD_SETLK,
# F_OFD_SETLKW, F_SETLEASE, F_NOTIFY: locks and watches on files of others.
OWNERS = (8, 10, 15, 0x8901, 0x8902, 6, 7, 37, 38, 1024, 1026)
# What is refused by an argument, equal to one of the values or with one of their bits: sockets but streams, which alone
# cannot send to others; to outlive what started it (PR_SET_PDEATHSIG); files whose writes wait for the disk (O_DSYNC).
BY_ARGUMENT: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "owner": (SECOND_ARGUMENT, EQUAL, OWNERS),
    "pair": (SECOND_ARGUMENT, HAS, (0b110,)),
    "self": (FIRST_ARGUMENT, EQUAL, (1,)),
    "open": (SECOND_ARGUMENT, HAS, (os.O_DSYNC,)),
    "open at": (THIRD_ARGUMENT, HAS, (os.O_DSYNC,)),
}
FOREIGN_ABI = 0x40000000  # numbers of the 32-bit ABI on x86-64
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def filter_code(machine: str, own_id: int) -> bytes | None:
    """The filter's instructions for a process with the id `own_id`; None for a machine whose numbers are unknown."""
    if machine not in MACHINES or sys.maxsize < 1 << 32:
        return None
    architecture, numbers = MACHINES[machine]
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, FOREIGN_ABI),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    for number in numbers["signal"]:  # to itself only
        code += [(EQUAL, 0, 4, number), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 0, 1, own_id)]
        code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    for number in numbers["limit"]:
        code += [(EQUAL, 0, 5, number), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, 0), (EQUAL, 0, 1, own_id)]
        code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    for name, (argument, compare, values) in BY_ARGUMENT.items():
        for number in numbers[name]:
            code += [(EQUAL, 0, 2 * len(values) + 2, number), (LOAD, 0, 0, argument)]
            for value in values:
                code += [(compare, 0, 1, value), (RETURN, 0, 0, ERRNO | errno.EPERM)]
            code.append((RETURN, 0, 0, ALLOW))
    answers = [
        (errno.EAGAIN, numbers["fork"]),  # the answer of a limit on processes
        (errno.ENOSYS, (CLONE3, OPENAT2, *numbers["absent"])),  # so that libraries try their other way
        (errno.EPERM, numbers["refused"] + NEWER),
        (0, numbers["idle"]),
    ]
    for answer, refused in answers:
        for number in refused:
            code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | answer)]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def refuse(libc: ctypes.CDLL) -> None:
    """Install the filter on this process for good; does nothing if machine or kernel cannot (the probe detects it)."""
    code = filter_code(os.uname().machine, os.getpid())
    if code is None:
        return
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HL", len(code) // 8, ctypes.addressof(buffer)))
    unused = ctypes.c_ulong(0)
    libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), program, unused, unused)
