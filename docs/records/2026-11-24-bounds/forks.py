"""Workers of the suite `fork` (`palimpsest bench`) take turns: python3 forks.py PROGRAM BYTES ROUNDS NAME...
Each answer is the median of five forks, in microseconds. A name may be NAME@PROGRAM."""
import statistics
import subprocess
import sys

program, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
workers = []
for name in sys.argv[4:]:
    who, _, own = name.partition("@")
    worker = subprocess.Popen([own or program, "bench-helper", "fork", who, size], text=True, bufsize=1,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print(name, worker.stdout.readline().strip(), file=sys.stderr)
    workers.append((name, worker, []))
for turn in range(rounds):
    for _, worker, answers in workers[turn % len(workers):] + workers[:turn % len(workers)]:
        worker.stdin.write("fork\n")
        answers.append(float(worker.stdout.readline()))
base = None
for name, worker, answers in workers:
    with open(f"/proc/{worker.pid}/maps") as file:
        mappings = sum(1 for _ in file)
    low, median, high = statistics.quantiles(answers, n=4)
    base = base or (min(answers), low, median)
    ratios = f"{min(answers) / base[0]:.3f} {low / base[1]:.3f} {median / base[2]:.3f}"
    print(f"{name:28.28} least {min(answers):6.1f} quartiles {low:6.1f} {median:6.1f} {high:6.1f}"
          f"  of the first's {ratios}  {mappings} mappings")
    worker.stdin.close()
    worker.wait()
