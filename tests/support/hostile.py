"""Programs that set out to do harm, by class, and programs without an end.

Those of REACHING end without an exception if, and only if, they get what they want; all bound themselves (forks,
memory, seconds) and do no harm where they get it.
"""

import os

# name: (program, kinds that do not stop it); the tests fill in text in braces
OPEN = ("limits",)  # the file system is the user's
REACHING: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "files": {
        "read the home folder": ("assert open({secret!r}).read() == 'planted'", OPEN),
        "read the tests": ("assert open({own!r}).read()", OPEN),
        "write outside": ("open({outside!r} + '/written', 'w').write('x')", OPEN),
        "write through a link": (
            "import os\nos.symlink({outside!r}, 'link')\nopen('link/written', 'w').write('x')\nos.remove('link')",
            OPEN,
        ),
        "write above": ("import os\nos.chdir('..')\nopen('{unique}', 'w')\nos.remove('{unique}')", OPEN),
        "change a time outside": ("import os\nos.utime({outside!r})", OPEN),
        "look at a device": ("import os\nassert len(os.listdir('/dev')) > 3", OPEN),
        "link to outside": (
            "import os\nos.link({secret!r}, 'link')\nassert open('link').read() == 'planted'\nos.remove('link')",
            OPEN,
        ),
        "rename outside": (
            "import os\nopen({outside!r} + '/a', 'w').close()\nos.rename({outside!r} + '/a', {outside!r} + '/b')",
            OPEN,
        ),
        "change rights outside": ("import os\nos.chmod({outside!r}, 0o755)", OPEN),
        "write to the library": (
            "import os\npath = os.path.dirname(os.__file__) + '/{unique}'\nopen(path, 'w').close()\nos.remove(path)",
            OPEN,
        ),
        "change a setting of the kernel": (
            "import os\nos.close(os.open('/proc/sys/kernel/hostname', os.O_WRONLY))",
            (),
        ),
        "make a device": (
            "import os, stat\nos.mknod('made', 0o600 | stat.S_IFCHR, os.makedev(1, 3))\nos.remove('made')",
            (),
        ),
        "leave a program with root's rights": (
            "import os\nopen('left', 'w').close()\nos.chmod('left', 0o4755)\nowner = os.stat('left').st_uid\n"
            "os.remove('left')\nassert owner == 0",
            (),
        ),
    },
    "what is inherited": {
        "read the environment": ("import os\nassert os.environ['SPECBENCH_SECRET'] == 'planted'", ()),
        "an inherited file": (
            "import os\ndef holds(number):\n    try: return os.pread(number, 7, 0) == b'planted'\n"
            "    except OSError: return False\nassert any(map(holds, range(5, 256)))",
            (),
        ),
    },
    "other processes": {
        "list processes": ("import os\nassert any(name.isdigit() for name in os.listdir('/proc'))", OPEN),
        "read the environment of a process": ("assert b'planted' in open('/proc/{victim}/environ', 'rb').read()", OPEN),
        "signal a process": ("import os\nos.kill({victim}, 0)", ()),
        "signal its group": ("import os\nos.killpg({victim}, 0)", ()),
        "signal the parent": ("import os\nassert os.getppid() > 0\nos.kill(os.getppid(), 0)", ()),
        "read the parent's memory": (
            "import os\nassert os.getppid() > 0\nopen('/proc/%d/mem' % os.getppid(), 'rb').close()",
            (),
        ),
        "limit a process": (
            "import resource\nresource.prlimit({victim}, resource.RLIMIT_CORE, (0, 0))",
            (),
        ),
        "write to the parent's files": (
            "import os\npath = f'/proc/{os.getppid()}/fd'\n"
            "assert any(os.access(f'{path}/{name}', os.W_OK) for name in os.listdir(path))",
            (),
        ),
        "read the parent's environment": ("import os\nopen(f'/proc/{os.getppid()}/environ', 'rb').close()", ()),
        "open a process": ("import os\nos.close(os.pidfd_open({victim}))", ()),
        "copy a process's memory": (
            "import ctypes, os\nclass Part(ctypes.Structure):\n"
            "    _fields_ = [('at', ctypes.c_void_p), ('size', ctypes.c_size_t)]\n"
            "data = ctypes.create_string_buffer(8)\nhere = Part(ctypes.addressof(data), 8)\n"
            "span = next(line for line in open('/proc/{victim}/maps') if ' r' in line)\n"
            "there = Part(int(span.partition('-')[0], 16), 8)\n"
            "copy = ctypes.CDLL(None).process_vm_readv\n"
            "assert copy({victim}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 8",
            (),
        ),
        "read shared memory": (
            "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\n"
            "place = libc.shmat({shared}, None, 0o10000)\nassert place != ctypes.c_void_p(-1).value\n"
            "assert ctypes.string_at(place, 7) == b'planted'",
            (),
        ),
        "outlive the parent": ("import ctypes\nassert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0", ()),
        "schedule a process": ("import os\nos.sched_setaffinity({victim}, os.sched_getaffinity(0))", ()),
        "slow a process": ("import os\nos.setpriority(os.PRIO_PROCESS, {victim}, 0)", ()),
        "trace a process": ("import ctypes\nassert ctypes.CDLL(None).ptrace(0x4206, {victim}, 0, 0) == 0", ()),
    },
    "new processes": {
        "run a program": ("import os\nos.execv('/bin/true', ['true'])", ()),
        "run a command": ("import subprocess\nsubprocess.run(['/bin/sleep', '0'], check=True)", ()),
        "fork": (
            "import os\nchild = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)",
            (),
        ),
        "fork bomb": (
            "import os, time\nmade = 0\nfor _ in range(200):\n    try: child = os.fork()\n"
            "    except OSError: continue\n    if not child:\n        time.sleep(1)\n        os._exit(0)\n"
            "    made += 1\nassert made > 5",
            (),
        ),
        "start a thread": (
            "import threading\nthread = threading.Thread(target=int)\nthread.start()\nthread.join()",
            (),
        ),
    },
    "rights": {
        "become another user": ("import os\nos.setresuid(1, 1, 1)", ()),
        "take groups": ("import os\nos.setgroups([0])", ()),
        "hold capabilities": (
            "import ctypes\nheld = (ctypes.c_uint32 * 6)()\n"
            "assert ctypes.CDLL(None).capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and any(held)",
            (),
        ),
        "change the root": ("import os\nos.chroot('.')", ()),
    },
    "network": {
        "connect": ("import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2).close()", ()),
        "listen": ("import socket\nsocket.create_server(('127.0.0.1', 0)).close()", ()),
        "send a packet": (
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
            (),
        ),
        "send a packet by a pair": (
            "import socket\npair = socket.socketpair(type=socket.SOCK_DGRAM)\n"
            "pair[0].sendto(b'x', chr(0) + {unique!r} + '-packets')",
            (),
        ),
        "take a name": ("import socket\nsocket.socketpair()[0].bind(chr(0) + {unique!r} + '-mine')", ()),
        "connect by name": (
            "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + {unique!r})",
            (),
        ),
    },
    "kernel": {
        "unshare": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", ()),
        "take shared memory": ("import ctypes\nassert ctypes.CDLL(None).shmget(0, 4096, 0o600) != -1", ()),
        "mount": (
            "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.unshare(0x20000) == 0\n"
            "assert libc.mount(b'none', b'/', None, 0x44000, None) == 0\n"
            "assert libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0",
            (),
        ),
        "watch files": ("import ctypes\nassert ctypes.CDLL(None).inotify_init1(0) != -1", ()),
        "watch a file system": ("import ctypes\nassert ctypes.CDLL(None).fanotify_init(0x200, 0) != -1", ()),
        "lock the library": ("import fcntl, os\nwith open(os.__file__) as file: fcntl.flock(file, fcntl.LOCK_SH)", ()),
        "lock a file": ("import fcntl\nwith open('file', 'w') as file: fcntl.lockf(file, fcntl.LOCK_EX)", ()),
        "ask for reads without waiting": (
            "import ctypes, os\nnumber = {'x86_64': 206, 'aarch64': 0}[os.uname().machine]\n"
            "assert ctypes.CDLL(None).syscall(number, 1, ctypes.byref(ctypes.c_ulong(0))) == 0",
            (),
        ),
        "wait for the disk at each write": ("import os\nos.close(os.open('file', os.O_CREAT | os.O_SYNC))", ()),
        "flush all disks": (
            "import ctypes, os\nnumber = {'x86_64': 162, 'aarch64': 81}[os.uname().machine]\n"
            "assert ctypes.CDLL(None).syscall(number) == 0",
            (),
        ),
        "name the machine": ("import socket\nsocket.sethostname(socket.gethostname())", ()),
        "set the clock": ("import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())", ()),
    },
    "resources": {
        "memory without a limit": ("import os\nos.close(os.memfd_create('x'))", ()),
        "many megabytes": ("data = bytearray(600 << 20)", ()),
        "a huge file": ("with open('file', 'wb') as file:\n    for _ in range(24): file.write(bytes(1 << 20))", ()),
        "many files of a megabyte": (
            "import os\nfor i in range(80):\n    with open(str(i), 'wb') as file: file.write(bytes(1 << 20))\n"
            "for i in range(80): os.remove(str(i))",
            OPEN,
        ),
        "many empty files": (
            "import os\nfor i in range(1200): open(str(i), 'w').close()\nfor i in range(1200): os.remove(str(i))",
            OPEN,
        ),
        "many open files": ("import os\nopened = [os.open('.', os.O_RDONLY) for _ in range(100)]", ()),
        "take back its memory": (
            "import resource\n_, hard = resource.getrlimit(resource.RLIMIT_AS)\nassert hard == resource.RLIM_INFINITY",
            (),
        ),
    },
}
# What `limits` stop, too, where they are root's: its programs run as nobody.
SHUT_TO_NOBODY = (
    *("read the home folder", "write outside", "write through a link", "change a time outside"),
    *("link to outside", "rename outside", "change rights outside", "write to the library"),
    "read the environment of a process",
)
if os.getuid() == 0:
    REACHING = {
        kind: {
            name: (program, tuple(kind for kind in open_to if kind != "limits" or name not in SHUT_TO_NOBODY))
            for name, (program, open_to) in entries.items()
        }
        for kind, entries in REACHING.items()
    }
PROGRAMS = {f"{kind}: {name}": entry for kind, entries in REACHING.items() for name, entry in entries.items()}
# What needs rights: a plain run of a user without them does not get it either.
NEEDS_ROOT = (
    *(f"files: {name}" for name in ("change a time outside", "change rights outside", "write to the library")),
    "other processes: read the parent's memory",
    *(f"files: {name}" for name in ("change a setting of the kernel", "make a device")),
    "files: leave a program with root's rights",
    *(f"rights: {name}" for name in REACHING["rights"]),
    *(f"kernel: {name}" for name in ("mount", "name the machine", "set the clock")),
)

ENDLESS: dict[str, str] = {
    "sleeps": "import time\ntime.sleep(60)",
    "loops": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "ignores signals": (
        "import signal\nfor name in (signal.SIGTERM, signal.SIGXCPU, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(name, signal.SIG_IGN)\nwhile True: pass"
    ),
    "floods its error": "import os\nwhile True: os.write(2, b'x' * 65536)",
    "floods its output": "while True: print('x' * 10000)",
    "waits at the end": "class Late:\n    def __del__(self):\n        while True: pass\nlate = Late()\ndel late",
    "waits without a pipe": "import os, time\nos.closerange(0, 64)\ntime.sleep(60)",
}
