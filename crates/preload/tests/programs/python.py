"""Forks with a large heap: prints what parent and children see, which must not depend on a freeze; lines with # may."""
import array
import gc
import multiprocessing
import os
import random
import sys
import zlib


def pte():
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmPTE:"))


def summary(heap):
    crc = 0
    for key, value in heap["table"].items():
        crc = zlib.crc32(b"%d %s" % (key, value.encode()), crc)
    for part in heap["parts"]:
        crc = zlib.crc32(part, crc)
    for node in heap["nodes"]:
        crc = zlib.crc32(repr(node).encode(), crc)
    return crc


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def in_child(name, work):
    pid = os.fork()
    if pid == 0:
        say("#pte", pte())
        work()
        say(name, summary(heap))
        os._exit(7)
    return pid


def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def churn(seed):
    """Changes much of the heap: small objects, large buffers that malloc maps, growth and truncation."""
    dice = random.Random(seed)
    for key in dice.sample(sorted(heap["table"]), 20000):
        del heap["table"][key]
    for key in range(20000):
        heap["table"][dice.randrange(10**6)] = str(dice.random()) * 3
    for _ in range(20):
        part = heap["parts"][dice.randrange(len(heap["parts"]))]
        part[dice.randrange(len(part))] = 1
        if dice.random() < 0.5:
            part.extend(bytes(dice.randrange(300000)))
        else:
            del part[dice.randrange(len(part)) + 1 :]
    heap["parts"].append(bytearray(dice.randrange(1 << 20)))
    heap["nodes"][dice.randrange(len(heap["nodes"]))] = [seed]


dice = random.Random(1)
heap = {
    "table": {number: str(dice.random()) for number in range(200000)},
    "parts": [bytearray(dice.randbytes(dice.randrange(1, 400000))) for _ in range(60)],
    "nodes": [[number, (number, str(number)), {"n": number}] for number in range(60000)],
}


def nested():
    churn(5)
    ended(in_child("grandchild", lambda: churn(6)))


def in_pool(part):
    return zlib.crc32(heap["parts"][part]), len(heap["table"]), gc.collect() >= 0


def main():
    say("parent", summary(heap))
    first = in_child("quiet child", lambda: None)
    ended(first)
    # The child reads while the parent goes on.
    for turn in range(4):
        pid = in_child(f"child {turn}", lambda: churn(100 + turn))
        churn(turn)
        say("parent", summary(heap))
        ended(pid)
        say("parent", summary(heap))
    ended(in_child("collecting child", gc.collect))
    gc.collect()
    gc.freeze()
    ended(in_child("frozen objects", gc.collect))
    gc.unfreeze()
    ended(in_child("nested", nested))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        say("pool", pool.map(in_pool, range(30)))
    churn(50)
    # After threads: the pool has had some.
    ended(in_child("after the pool", lambda: churn(51)))
    # malloc gets whole mappings back and must hand out zeros.
    numbers = array.array("Q", bytes(8 << 20))
    assert not any(memoryview(numbers).cast("B")[::977])
    say("parent", summary(heap))


main()
