"""Workers of the suite `fork` (`palimpsest bench`), new ones in each round, take turns:
python3 processes.py BYTES ROUNDS TURNS NAME[@PROGRAM][,VARIABLE=VALUE]...
Microseconds: the medians over the rounds of each worker's least, lower quartile and median; and ratios to the first."""
import os
import statistics
import subprocess
import sys

size, rounds, turns, names = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
found = {name: [] for name in names}
for number in range(rounds):
    workers = []
    for name in names[number % len(names):] + names[:number % len(names)]:
        who, *variables = name.split(",")
        who, _, program = who.partition("@")
        worker = subprocess.Popen([program or "palimpsest", "bench-helper", "fork", who, size], text=True, bufsize=1,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env=os.environ | dict(variable.split("=") for variable in variables))
        worker.stdout.readline()
        workers.append((name, worker, []))
    for turn in range(turns):
        for _, worker, answers in workers[turn % len(workers):] + workers[:turn % len(workers)]:
            worker.stdin.write("fork\n")
            answers.append(float(worker.stdout.readline()))
    for name, worker, answers in workers:
        lower, median, _ = statistics.quantiles(answers, n=4)
        found[name].append((min(answers), lower, median))
        worker.stdin.close()
        worker.wait()
base = None
for name in names:
    figures = [statistics.median(one[at] for one in found[name]) for at in range(3)]
    base = base or figures
    print(f"{name:40.40}", *(f"{figure:6.1f}" for figure in figures),
          *(f"{figure / first:.3f}" for figure, first in zip(figures, base)))
