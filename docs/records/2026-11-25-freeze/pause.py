"""How long a Python with 182 MiB stands still for its forks, plain and by `palimpsest run`.

    python3 pause.py PALIMPSEST [ROUNDS]

Each life forks 60 times and waits 30 ms in `select` after each, as a server does that forks and waits. In turn:
without Palimpsest; by `run` without a flag; frozen in slices (`--huge=off`); frozen in one go (`--pause none`). Prints
milliseconds by the clock: the first fork, the longest of the others, the median of the last ten, and by how much the
longest wait was longer than asked, which is how long a request could have waited for a slice; then the report.
"""
import os
import statistics
import subprocess
import sys
import time

LIFE = r"""
import os, select, time
heap = {number: str(number) * 60 for number in range(415_000)}
taken, late = [], 0
for _ in range(60):
    before = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(0)
    taken.append((time.perf_counter() - before) * 1e3)
    os.waitpid(child, 0)
    before = time.perf_counter()
    select.select([], [], [], 0.03)
    late = max(late, (time.perf_counter() - before) * 1e3 - 30)
with open("/proc/self/smaps") as maps:
    huge = sum(int(line.split()[1]) for line in maps if line.startswith("AnonHugePages:")) >> 10
print(*taken, late, huge)
"""

WAYS = [
    ("plain", None),
    ("run", []),
    ("run --huge=off", ["--huge=off"]),
    ("run --pause none", ["--pause", "none"]),
]


def life(palimpsest, flags):
    report = f"/tmp/palimpsest-pause-{os.getpid()}"
    command = ["/usr/bin/python3", "-c", LIFE]
    if flags is not None:
        command = [palimpsest, "run", f"--report={report}", *flags, "--"] + command
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    *taken, late, huge = [float(word) for word in said.split()]
    text = ""
    if flags is not None and os.path.exists(report):
        text = open(report).read()
        os.remove(report)
    return taken, late, huge, text


def main():
    palimpsest, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for turn in range(rounds):
        for name, flags in WAYS:
            taken, late, huge, report = life(palimpsest, flags)
            load = os.getloadavg()[0]
            print(f"{name:17} load {load:4.1f}: first {taken[0]:7.2f}, longest of the others {max(taken[1:]):7.2f}, "
                  f"last ten {statistics.median(taken[-10:]):6.2f}, a wait longer by {late:6.2f}, huge {huge:.0f} MiB",
                  flush=True)
            for line in report.splitlines():
                if line.startswith(("slices", "huge", "frozen", "palimpsest")) or " once, " in line:
                    print(f"    {line}", flush=True)


main()
