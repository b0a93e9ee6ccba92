#!/usr/bin/env python3
"""Compares programs with much text: plain, from huge pages in three ways of Palimpsest, and with two peers.

Usage: peers.py PALIMPSEST PLAIN OWN ALIGNED COPIER ROUNDS TURNS

PLAIN is cached in small pages, OWN is a copy of it in huge ones, ALIGNED is linked for libhugetlbfs, COPIER is
copied_text.c as a shared object. All generated programs (hot.c) take turns in one run.
"""

import os
import statistics
import subprocess
import sys

palimpsest, plain, own, aligned, copier = sys.argv[1:6]
rounds, turns = int(sys.argv[6]), int(sys.argv[7])
run = [palimpsest, "run", "--local-text", "--no-freeze"]
MODES = {
    "plain": ([plain], {}),
    "own": (run + ["--reread", own], {}),
    "private": (run + ["--copies", plain], {}),
    "local": (run + ["--copies", "--shared", plain], {}),
    "like iodlr": ([plain], {"LD_PRELOAD": copier}),
    "libhugetlbfs": ([aligned], {"LD_PRELOAD": "libhugetlbfs.so.0", "HUGETLB_ELFMAP": "R"}),
}
# What `run` itself takes, for a program without much text.
RUN_ALONE = "run alone"
STARTS = MODES | {RUN_ALONE: (run + ["cat"], {})}


def start(mode):
    """Returns the process when it has said that it is up, and its processor time until then, in milliseconds."""
    command, variables = STARTS[mode]
    process = subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if mode == RUN_ALONE:
        process.stdin.write("up\n")
        process.stdin.flush()
    process.stdout.readline()
    with open(f"/proc/{process.pid}/schedstat") as file:
        return process, int(file.read().split()[0]) / 1e6


def ask(process, count):
    """Returns the milliseconds of a round of calls."""
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    return float(process.stdout.readline()) / count / 1e6


def end(process):
    process.stdin.close()
    process.wait()


def memory(process):
    names = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Pss", "Private_Hugetlb", "Shared_Hugetlb")
    sums = dict.fromkeys(names, 0)
    with open(f"/proc/{process.pid}/smaps") as file:
        for line in file:
            name = line.split(":")[0]
            if name in sums:
                sums[name] += int(line.split()[1])
    return ", ".join(f"{name} {value / 1024:.1f} MiB" for name, value in sums.items() if value)


def told(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


crew = {mode: start(mode)[0] for mode in MODES}
calls, starts = {mode: [] for mode in MODES}, {mode: [] for mode in STARTS}
for mode, process in crew.items():
    ask(process, 1)
    print(f"memory, {mode}: {memory(process)}")
for _ in range(rounds):
    for mode, process in crew.items():
        calls[mode].append(ask(process, turns))
for _ in range(rounds):
    for mode in STARTS:
        process, taken = start(mode)
        starts[mode].append(taken)
        end(process)
for mode, values in calls.items():
    print(f"20 000 calls, ms, {mode}: {told(values)}")
for mode, values in starts.items():
    print(f"processor time of a start, ms, {mode}: {told(values)}")
for process in crew.values():
    end(process)
print("load", os.getloadavg())
