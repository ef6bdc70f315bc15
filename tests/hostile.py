"""Programs that set out to do harm or to be called right, for tests/test_hostile_programs.py.

Those of REACHING end without an exception if, and only if, they get what they want; all bound themselves (forks,
memory, seconds) and do no harm where they get it. Those of FOOLING come before a wrong solution and its tests.
"""

WRONG = "\ndef add(a, b):\n    return a - b\n\ndef check(f):\n    assert f(2, 3) == 5\n\ncheck(add)\n"

# name: (program, kinds that do not stop it; text in braces is filled in by the test)
OPEN = ("limits",)  # the file system is the user's
REACHING: dict[str, tuple[str, tuple[str, ...]]] = {
    "read the home folder": ("assert open({secret!r}).read() == 'planted'", OPEN),
    "read the environment": ("import os\nassert os.environ['SPECBENCH_SECRET'] == 'planted'", ()),
    "read the environment of a process": ("assert b'planted' in open('/proc/{victim}/environ', 'rb').read()", OPEN),
    "list processes": ("import os\nassert any(name.isdigit() for name in os.listdir('/proc'))", OPEN),
    "read the tests": ("assert open({own!r}).read()", OPEN),
    "write outside": ("open({outside!r} + '/written', 'w').write('x')", OPEN),
    "write through a link": (
        "import os\nos.symlink({outside!r}, 'link')\nopen('link/written', 'w').write('x')\nos.remove('link')",
        OPEN,
    ),
    "write above": ("import os\nos.chdir('..')\nopen('{unique}', 'w')\nos.remove('{unique}')", OPEN),
    "change a time outside": ("import os\nos.utime({outside!r})", OPEN),
    "look at a device": ("import os\nassert len(os.listdir('/dev')) > 3", OPEN),
    "run a program": ("import os\nos.execv('/bin/true', ['true'])", ()),
    "connect": ("import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2).close()", ()),
    "listen": ("import socket\nsocket.create_server(('127.0.0.1', 0)).close()", ()),
    "send a packet": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
        (),
    ),
    "connect by name": (
        "import socket\nsocket.socket(socket.AF_UNIX).connect(chr(0) + {unique!r})",
        (),
    ),
    "fork": (
        "import os\nchild = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)",
        (),
    ),
    "fork bomb": (
        "import os, time\nmade = 0\nfor _ in range(200):\n    try: child = os.fork()\n    except OSError: continue\n"
        "    if not child:\n        time.sleep(1)\n        os._exit(0)\n    made += 1\nassert made > 5",
        (),
    ),
    "start a thread": ("import threading\nthread = threading.Thread(target=int)\nthread.start()\nthread.join()", ()),
    "run a command": ("import subprocess\nsubprocess.run(['/bin/sleep', '0'], check=True)", ()),
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
    "unshare": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", ()),
    "take shared memory": ("import ctypes\nassert ctypes.CDLL(None).shmget(0, 4096, 0o600) != -1", ()),
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
    "an inherited file": (
        "import os\ndef holds(number):\n    try: return os.pread(number, 7, 0) == b'planted'\n"
        "    except OSError: return False\nassert any(map(holds, range(5, 256)))",
        (),
    ),
    "take back its memory": (
        "import resource\n_, hard = resource.getrlimit(resource.RLIMIT_AS)\nassert hard == resource.RLIM_INFINITY",
        (),
    ),
}
# What needs rights: a plain run of a user without them does not get it either.
NEEDS_ROOT = ("change a time outside", "read the parent's memory")

FOOLING: dict[str, str] = {
    "leave": "import sys\nsys.exit(0)",
    "leave at once": "import os\nos._exit(0)",
    "leave by exception": "raise SystemExit(0)",
    "leave later": "import atexit, os\natexit.register(os._exit, 0)",
    "raise at the end": "import atexit\n@atexit.register\ndef end(): raise SystemExit(0)",
    "catch the end": "import sys\nsys.excepthook = lambda *error: None",
    "die by a signal": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "become another": "import os\nos.execv('/bin/true', ['true'])",
    "say so": "print('passed')\nimport sys\nsys.stderr.write('passed\\n')\nsys.stderr.flush()",
    "patch the leaving": "import os\nos._exit = lambda code: None",
    "patch the writing": "import os\nwrite = os.write\nos.write = lambda number, data: write(number, b'd')",
    "patch the names": (
        "import builtins\nbuiltins.BaseException = builtins.Exception = builtins.AssertionError = ZeroDivisionError\n"
        "builtins.str = builtins.type = builtins.getattr = lambda *_: 'passed'"
    ),
    "patch exec": "import builtins\nbuiltins.exec = builtins.compile = builtins.next = lambda *_: None",
    "write to what is open": (
        "import os\nfor number in range(64):\n    for word in (b'd', b'passed\\n', b'status 0\\n'):\n"
        "        try: os.write(number, word)\n        except OSError: pass\nos._exit(0)"
    ),
    "pass on what can be read": (
        "import os\nfor number in range(3, 64):\n    try: os.set_blocking(number, False); data = os.read(number, 99)\n"
        "    except OSError: continue\n    for other in range(64):\n        try: os.write(other, data)\n"
        "        except OSError: pass\nos._exit(0)"
    ),
    "speak the watcher's language": "import os\nos.write(3, b'd')\nos.read(4, 1)\nos._exit(0)",
    "begin again": "import os\nos.write(3, b'b')\nos.read(4, 1)\nos.write(3, b'd')\nos.read(4, 1)\nos._exit(0)",
    "speak it in a handler": (
        "import os, signal\ndef speak(*_):\n    os.write(3, b'd')\n    os.read(4, 1)\n    os._exit(0)\n"
        "signal.signal(signal.SIGALRM, speak)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nwhile True: pass"
    ),
    "speak it at the end": (
        "import os\nclass Late:\n    def __del__(self):\n        os.write(3, b'd')\n        os.read(4, 1)\n"
        "        os._exit(0)\nlate = Late()\ndel late"
    ),
    "close the door": "import os\nos.closerange(0, 64)",
    "swap the door": "import os\nos.dup2(4, 3)\nos.dup2(2, 4)",
    "walk frames for a secret": (
        "import gc, os, sys\ntexts = set()\nframe = sys._getframe()\nwhile frame:\n"
        "    texts |= {v for v in frame.f_locals.values() if type(v) in (bytes, str)}\n    frame = frame.f_back\n"
        "for item in gc.get_objects():\n    texts |= {v for v in gc.get_referents(item) if type(v) is bytes}\n"
        "for text in texts:\n    data = text if type(text) is bytes else text.encode('utf-8', 'replace')\n"
        "    if len(data) > 64: continue\n    for number in (1, 2, 3):\n        try: os.write(number, data)\n"
        "        except OSError: pass\nos._exit(0)"
    ),
    "change the checker's names": (
        "import ctypes, sys\nframe = sys._getframe(1)\nwhile frame:\n    for name in ('leave', 'text'):\n"
        "        if name in frame.f_locals:\n            frame.f_locals[name] = lambda *_: None\n"
        "            if sys.version_info < (3, 13):\n"
        "                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))\n"
        "    frame = frame.f_back"
    ),
    "jump in the checker": (
        "import sys\ncheckers = [sys._getframe(1)]\ndef trace(frame, event, argument):\n"
        "    if frame is checkers[0] and event == 'line':\n        frame.f_lineno = {claim}\n"
        "        sys.settrace(None)\n    return trace\n"
        "sys.settrace(trace)\ncheckers[0].f_trace = trace"
    ),
}

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
    "waits without a door": "import os, time\nos.closerange(0, 64)\ntime.sleep(60)",
    "knocks and stays away": "import os, time\nos.write(3, b'd')\ntime.sleep(60)",
}
