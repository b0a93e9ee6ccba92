"""A data loader: arrays in the parent, and workers that read them. Prints how long a worker takes to start, and the
memory of all processes.

python3 data_loader.py --bytes 2G --workers 8 --context frozen     (or fork)
"""

import argparse
import json
import multiprocessing
import os
import time

import palimpsest


def size(text):
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1])
    return int(text[:-1]) * factor if factor else int(text)


# ANCHOR: loader
class Dataset:
    """Samples that are made once, in the parent."""

    def __init__(self, total, sample):
        self.samples = [bytearray(os.urandom(64) * (sample // 64)) for _ in range(total // sample)]

    def batch(self, worker, workers):
        """Reads the share of one worker: some of the samples, each as a whole."""
        return sum(sum(sample[::64]) for sample in self.samples[worker::workers])


def work(dataset, worker, workers, started, results, finish):
    started.put(time.monotonic())
    results.put(dataset.batch(worker, workers))
    finish.wait()


def load(dataset, context, workers):
    """Returns the sum over all samples, the seconds each worker took to start, and the memory of all in bytes."""
    started, results, finish = context.Queue(), context.Queue(), context.Event()
    starts, processes = [], []
    for worker in range(workers):
        process = context.Process(target=work, args=(dataset, worker, workers, started, results, finish))
        begin = time.monotonic()
        process.start()
        starts.append(started.get() - begin)
        processes.append(process)
    total = sum(results.get() for _ in processes)
    report = palimpsest.report()
    memory = report.frozen if report else 0
    memory += sum(proportional(pid) for pid in [os.getpid(), *(process.pid for process in processes)])
    finish.set()
    for process in processes:
        process.join()
    return total, starts, memory
# ANCHOR_END: loader


def proportional(pid):
    """Returns the memory of a process in bytes; shared memory counts in proportion (PSS). Files in memory do not count:
    frozen memory is among them, and takes what was frozen whether it is mapped or not."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        fields = {line.split(":")[0]: line.split()[1] for line in file if line.endswith(" kB\n")}
    return (int(fields["Pss"]) - int(fields["Pss_Shmem"])) << 10


def page_tables(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmPTE:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=size, default=64 << 20)
    parser.add_argument("--sample", type=size, default=100 << 10)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--context", choices=["fork", "frozen"], default="frozen")
    options = parser.parse_args()
    dataset = Dataset(options.bytes, options.sample)
    expected = dataset.batch(0, 1)
    before = proportional(os.getpid())
    begin = time.monotonic()
    if options.context == "frozen":
        context = palimpsest.get_context(refused="raise")
        context.freeze()
    else:
        context = multiprocessing.get_context("fork")
    frozen = time.monotonic() - begin
    total, starts, memory = load(dataset, context, options.workers)
    assert total == expected, "workers have read what the parent has not written"
    starts.sort()
    print(json.dumps({
        "context": options.context,
        "parent_mib": before >> 20,
        "frozen_mib": palimpsest.frozen_bytes() >> 20,
        "freeze_ms": round(frozen * 1000),
        "start_ms": round(starts[len(starts) // 2] * 1000, 2),
        "start_ms_worst": round(starts[-1] * 1000, 2),
        "memory_mib": memory >> 20,
        "parent_page_tables_kib": page_tables(os.getpid()) >> 10,
    }))


if __name__ == "__main__":
    main()
