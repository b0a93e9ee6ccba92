"""Forks of Redis with 700 MB by one policy: the first, six in a row, after writes to any keys, after rests of 1.2 s.

    probe.py plain|thp|frozen|gather|default PALIMPSEST

`PALIMPSEST` is the program, or a script that takes the same arguments. Prints milliseconds, as Redis reports them.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

KEYS, VALUE = 1_250_000, b"v" * 400
OPTIONS = {"frozen": ["--huge=off"], "gather": ["--huge=gather"], "default": []}

mode, program = sys.argv[1:]
folder = tempfile.mkdtemp()
path = folder + "/socket"
command = ["redis-server", "--port", "0", "--save", "", "--enable-debug-command", "yes", "--dir", folder]
command += ["--disable-thp", "no" if mode == "thp" else "yes", "--unixsocket", path]
if mode in OPTIONS:
    command = [program, "run", "--threads", "stop", "--report=" + folder + "/report", *OPTIONS[mode], "--", *command]
environment = dict(os.environ, MALLOC_CONF="thp:always") if mode == "thp" else None
server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
stream = socket.socket(socket.AF_UNIX)
while True:
    try:
        stream.connect(path)
        break
    except OSError:
        time.sleep(0.02)
answers = stream.makefile("rb")


def request(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def answer():
    line = answers.readline().rstrip()
    return answers.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line[1:]


def ask(*words):
    stream.sendall(request(*words))
    return answer()


def info(name):
    return next(line.split(b":")[1] for line in ask("INFO").split(b"\r\n") if line.startswith(name + b":"))


def fork():
    assert ask("BGSAVE").startswith(b"Background")
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as children:
        for child in children.read().split():
            os.kill(int(child), signal.SIGUSR1)
    while info(b"rdb_bgsave_in_progress") != b"0":
        time.sleep(0.002)
    return int(info(b"latest_fork_usec")) / 1000


def rested():
    time.sleep(1.2)
    return fork()


def write(many):
    keys = (b"key:%d" % numbers.randrange(KEYS) for _ in range(many))
    stream.sendall(b"".join(request("SET", key, VALUE) for key in keys))
    for _ in range(many):
        assert answer() == b"OK"


def show(what, *figures):
    kilobytes = {}
    with open(f"/proc/{server.pid}/smaps_rollup") as rollup:
        for name, figure, *_ in (line.split() for line in list(rollup)[1:]):
            kilobytes[name] = int(figure) // 1024
    print(mode, what, *figures, f"resident {kilobytes['Rss:']}, huge {kilobytes['AnonHugePages:']} MiB", flush=True)


numbers = random.Random(7)
show("empty")
ask("DEBUG", "POPULATE", KEYS, "key", len(VALUE))
show("full, load", os.getloadavg()[0])
show("first", fork())
show("idle", *[fork() for _ in range(6)])
for writes in (1000, 100_000):
    for _ in range(writes // 500):
        write(500)
    show(f"{writes} writes", fork())
show("rested", *[rested() for _ in range(4)])
server.terminate()
server.wait()
if mode in OPTIONS:
    with open(folder + "/report") as report:
        print(report.read())
shutil.rmtree(folder)
