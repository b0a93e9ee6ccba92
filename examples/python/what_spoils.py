"""Prints how much of a frozen heap a child copies, for various things that it does; each in a Python of its own."""

import gc
import json
import os
import subprocess
import sys

import palimpsest

MIB = int(os.environ.get("SPOIL_MIB", "32"))


def texts():
    return [f"text {number}" for number in range(MIB * 16000)]


def private():
    """Returns the bytes of anonymous memory; of frozen memory, that is what this process has copied."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) << 10


def nothing(_):
    pass


def each(heap):
    for _one in heap:
        pass


def some(heap):
    for index in range(0, len(heap), 1000):
        _one = heap[index]


def contents(heap):
    sum(heap[::64])


def collect(_):
    gc.collect()


#: What is in the heap, and what the child does with it.
WAYS = {
    "nothing": (texts, nothing),
    "every text of a list is looked at": (texts, each),
    "one text in a thousand is looked at": (texts, some),
    "every byte of a bytearray is read": (lambda: bytearray(os.urandom(MIB << 20)), contents),
    "a list of None, True and small numbers is read": (lambda: [None, True, 5] * (MIB * 43690), each),
    "lists of lists are collected, after gc.freeze()": (lambda: [[] for _ in range(MIB * 16000)], collect),
    "lists of lists are collected, without it": (lambda: [[] for _ in range(MIB * 16000)], collect),
}


def one(way):
    make, act = WAYS[way]
    heap = make()
    report = palimpsest.freeze(collect=not way.endswith("without it"))
    reader, writer = os.pipe()
    if palimpsest.fork() == 0:
        before = private()
        act(heap)
        os.write(writer, str(private() - before).encode())
        os._exit(0)
    copied = int(os.read(reader, 100))
    os.wait()
    print(json.dumps({"way": way, "frozen_mib": report.frozen >> 20, "copied_mib": round(copied / (1 << 20), 1)}))


def main():
    if len(sys.argv) > 1:
        return one(sys.argv[1])
    for way in WAYS:
        subprocess.run([sys.executable, __file__, way], check=True)


if __name__ == "__main__":
    main()
