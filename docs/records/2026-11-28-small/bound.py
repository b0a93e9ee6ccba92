"""What a program pays for any preloaded object, and for Palimpsest's: plain, with an object that is empty, and by run.

    python3 bound.py PALIMPSEST [ROUNDS]

A subshell of bash, a target of make that executes a shell, and a shell that is executed alone (`posix_spawn`). Prints
microseconds of each by the clock, without the start of bash, of make and of `run` (least, median of the rounds).
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

TIMES = 300


def measured(run):
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) / TIMES * 1e6


def main():
    palimpsest, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as folder:
        targets = [f"t{number}" for number in range(TIMES)]
        with open(f"{folder}/Makefile", "w") as file:
            file.write(f".PHONY: all none {' '.join(targets)}\nall: {' '.join(targets)}\nnone:\n")
            file.writelines(f"{target}:\n\t@:;:\n" for target in targets)
        with open(f"{folder}/empty.c", "w") as file:
            file.write("int nothing;\n")
        empty = f"{folder}/empty.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", empty, f"{folder}/empty.c"], check=True)
        ways = {"plain": [], "empty": ["env", f"LD_PRELOAD={empty}"], "run": [palimpsest, "run", "--"]}
        programs = {
            "subshell": [["bash", "-c", f"for ((i = 0; i < {times}; i++)); do ( : ); done"] for times in (TIMES, 0)],
            "make": [["make", "-s", "-C", folder, target] for target in ("all", "none")],
        }
        environments = {
            name: dict(line.split("=", 1) for line in subprocess.run(
                way + ["sh", "-c", "env"], check=True, capture_output=True, text=True).stdout.splitlines())
            for name, way in ways.items()
        }

        def spawn(environment):
            for _ in range(TIMES):
                os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", ":"], environment), 0)

        found = {}
        for _ in range(rounds):
            for name, way in ways.items():
                for program, lines in programs.items():
                    run, start = [measured(lambda: subprocess.run(way + line, check=True)) for line in lines]
                    found.setdefault((program, name), []).append(run - start)
                found.setdefault(("shell", name), []).append(measured(lambda: spawn(environments[name])))
        for (program, name), times in sorted(found.items()):
            print(f"{program:9} {name:6} least {min(times):4.0f}, median {statistics.median(times):4.0f}")


main()
