#!/usr/bin/env python3
"""What the start of a second process with a shared copy costs, by how its file is cached.

Usage: second.py PALIMPSEST PROGRAM FOLDER

PROGRAM is the generated program of `palimpsest bench numa` (hot.c with COLD). FOLDER gets two copies of it: one that is
read again by the program's own faults, and one that is read again into huge pages.
"""

import mmap
import os
import shutil
import statistics
import subprocess
import sys

palimpsest, program, folder = sys.argv[1:4]
run = [palimpsest, "run", "--local-text", "--no-freeze"]
RUN_ALONE = "run alone"


def start(name):
    """Returns the process when it has said that it is up, and its processor time until then, in milliseconds."""
    command, variables = commands[name]
    process = subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if name == RUN_ALONE:
        process.stdin.write("up\n")
        process.stdin.flush()
    process.stdout.readline()
    with open(f"/proc/{process.pid}/schedstat") as file:
        return process, int(file.read().split()[0]) / 1e6


def end(process):
    process.stdin.close()
    process.wait()


def shared(name):
    return run + ["--copies", "--shared", f"{folder}/{name}"], {"XDG_RUNTIME_DIR": f"{folder}/copies-{name}"}


commands = {RUN_ALONE: (run + ["cat"], {}), "plain": ([f"{folder}/small"], {})}
commands |= {name: shared(name) for name in ("small", "huge")}
commands["huge, its own pages"] = (run + [f"{folder}/huge"], {})
for name in ("small", "huge"):
    shutil.copy(program, f"{folder}/{name}")
    os.makedirs(f"{folder}/copies-{name}", mode=0o700, exist_ok=True)
    with open(f"{folder}/{name}", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
with open(f"{folder}/huge", "rb") as file:
    view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    view.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, len(view), 2 << 20):
        view[at]
    view.close()
first = [start(name)[0] for name in ("small", "huge")]
times = {name: [] for name in commands}
for _ in range(15):
    for name, values in times.items():
        process, taken = start(name)
        values.append(taken)
        end(process)
for name, values in times.items():
    print(f"{name}: {statistics.median(values):.2f} ms ({min(values):.2f} to {max(values):.2f})")
for process in first:
    end(process)
print("load", os.getloadavg())
