#!/usr/bin/env python3
"""Compares real programs from small and from huge pages of their own files, in turns, by processor time.

Usage: programs.py FOLDER PALIMPSEST ROUNDS [NAME,...]

FOLDER/plain and FOLDER/huge each have copies of the programs' files, by fill.sh; what is absent is left out. Those in
`plain` are dropped from the page cache and read again by the program's own faults; those in `huge` are dropped and read
again into huge pages, by the calls of `palimpsest run --local-text --reread`. Both are then executed plainly, and those
in `huge` also by `palimpsest run --local-text --no-freeze`.
"""

import glob
import mmap
import os
import re
import statistics
import sys
import time

folder, palimpsest, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
only = sys.argv[4].split(",") if len(sys.argv) > 4 else None
MODES = ("plain", "huge", "run")
crate = max(glob.glob(os.path.expanduser("~/.cargo/registry/src/*/regex-syntax-*")))
RUSTC = ["--edition=2021", "--crate-type=lib", '--cfg=feature="std"', '--cfg=feature="unicode"', "--cap-lints=allow"]
NODE = (
    "let n=0;for(let i=0;i<20000;i++){n+=new Function('a','return a+'+i+';')(i)+JSON.stringify({i,a:[i]}).length"
    "+/(\\d+)x?/.exec('n'+i)[1].length}console.log(n)"
)


def clang(level):
    words = ["-xc++-cpp-output", "-std=c++17", level, "-c", f"{folder}/big.ii", "-o", "/dev/null"]
    return lambda at: [f"{at}/clang"] + words


def gcc(level):
    words = ["-std=c++17", "-quiet", "-fpreprocessed", level, f"{folder}/big.gcc.ii", "-o", "/dev/null"]
    return lambda at: [f"{at}/cc1plus"] + words


def rustc(words):
    return lambda at: [f"{at}/../bin/rustc", f"{crate}/src/lib.rs"] + RUSTC + words


DEPLOYMENT = "create deployment x --image=y --dry-run=client -o yaml --validate=false".split()


# The folder of the program's files, its command, and whether it needs the folder of its libraries.
CASES = {
    "clang -O2": ("clang", clang("-O2"), True),
    "clang -O0": ("clang", clang("-O0"), True),
    "cc1plus -O2": ("gcc", gcc("-O2"), False),
    "cc1plus -O0": ("gcc", gcc("-O0"), False),
    "rustc -O": ("rust/*", rustc(["-O", "--emit=obj", "-o", "/dev/shm/x.o"]), False),
    "rustc metadata": ("rust/*", rustc(["--emit=metadata", "-o", "/dev/shm/x.rmeta"]), False),
    "node": (".", lambda at: [f"{at}/node", "-e", NODE], False),
    "node -e 0": (".", lambda at: [f"{at}/node", "-e", "0"], False),
    "terraform version": ("static", lambda at: [f"{at}/terraform", "version"], False),
    "terraform fmt": ("static", lambda at: [f"{at}/terraform", "fmt", "-check", f"{folder}/tf"], False),
    "kubectl version": ("static", lambda at: [f"{at}/kubectl", "version", "--client"], False),
    "kubectl create": ("static", lambda at: [f"{at}/kubectl"] + DEPLOYMENT, False),
    "docker --help": ("docker", lambda at: [f"{at}/docker", "--help"], False),
}


def files(mode, below):
    found = (path for path in glob.glob(f"{folder}/{mode}/{below}/*") if os.path.isfile(path))
    return [path for path in found if not os.path.islink(path)]


def forget(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_huge_pages(path):
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        if length >= 4 << 20:
            view = mmap.mmap(file.fileno(), length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
            view.madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, length, 2 << 20):
                view[at]
            view.close()


def start(case, mode):
    below, command, has_libraries = CASES[case]
    at = f"{folder}/{'huge' if mode == 'run' else mode}/{below.replace('*', 'lib')}"
    variables = {"LD_LIBRARY_PATH": at, "KUBECONFIG": "/dev/null"} if has_libraries else {"KUBECONFIG": "/dev/null"}
    silent = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_WRONLY, 0) for number in (1, 2)]
    words = [palimpsest, "run", "--local-text", "--no-freeze", "--"] if mode == "run" else []
    words += command(at)
    return os.posix_spawn(words[0], words, os.environ | variables, file_actions=silent)


def taken(case, mode):
    _, status, usage = os.wait4(start(case, mode), 0)
    assert os.waitstatus_to_exitcode(status) in (0, 3), case
    return (usage.ru_utime + usage.ru_stime) * 1e3


def most_in_huge_pages(case, mode):
    """Returns MiB that were mapped so at some moment of its run."""
    process, most = start(case, mode), 0
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        with open(f"/proc/{process}/smaps") as file:
            try:
                most = max(most, sum(int(size) for size in re.findall(r"FilePmdMapped:\s+(\d+)", file.read())))
            except OSError:
                pass
        time.sleep(0.002)
    return most >> 10


def told(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


for case, (below, *_) in CASES.items():
    if only and case not in only:
        continue
    if not os.path.exists(CASES[case][1](f"{folder}/plain/{below.replace('*', 'lib')}")[0]):
        print(f"{case}: not there")
        continue
    for mode in ("plain", "huge"):
        for path in files(mode, below):
            forget(path)
            if mode == "huge":
                read_into_huge_pages(path)
    seen = {mode: most_in_huge_pages(case, mode) for mode in ("plain", "huge")}
    times = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            times[mode].append(taken(case, mode))
    gain = statistics.median(times["plain"]) / statistics.median(times["huge"])
    each = ", ".join(f"{mode} {told(values)}" for mode, values in times.items())
    print(f"{case}: {each} ms; plain / huge {gain:.3f};")
    print(f"    MiB so mapped {seen}", flush=True)
print("load", os.getloadavg())
