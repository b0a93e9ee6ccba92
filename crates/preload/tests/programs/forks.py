# Forks until most of its memory is frozen or in huge pages, and prints which: `frozen`, `huge` or `both`, which is some
# of each; then whether huge pages were `scarce` meanwhile. `waits` after each fork, `hurries` from one to the next, or
# forks `once` and only waits.

import ctypes
import mmap
import os
import sys
import time

way = sys.argv[1]
PIECE, MOST = 2 << 20, 60 << 10
MADV_COLLAPSE = 25


def failures():
    # Huge pages that the kernel did not find for anybody.
    with open("/proc/vmstat") as events:
        names = ("thp_collapse_alloc_failed", "thp_fault_fallback")
        return sum(int(line.split()[1]) for line in events if line.split()[0] in names)


def is_refused():
    # Whether new memory of the size of the heap cannot be put into huge pages, either.
    memory = mmap.mmap(-1, 66 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % PIECE
    for place in range(start, start + (64 << 20), PIECE):
        for page in range(place, place + PIECE, 4096):
            memory[page] = 1
        try:
            memory.madvise(MADV_COLLAPSE, place, PIECE)
        except OSError:
            return True
    return False


before = failures()
heap = bytearray(64 << 20)
for place in range(0, len(heap), 4096):
    heap[place] = place >> 12 & 255


def figures():
    frozen = huge = 0
    is_frozen = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            words = line.split()
            if not words[0].endswith(":"):
                is_frozen = "palimpsest-frozen" in line
            elif words[0] == "Size:" and is_frozen:
                frozen += int(words[1])
            elif words[0] == "AnonHugePages:":
                huge += int(words[1])
    return {"frozen": frozen, "huge": huge}


def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if heap[5 << 20] == 5 << 8 & 255 else 1)
    assert os.waitpid(child, 0)[1] == 0


# So often at most that a hang ends.
for number in range(10000 if way == "hurries" else 300):
    if way != "once" or number == 0:
        fork()
    if way != "hurries":
        time.sleep(1)
    found = figures()
    is_mixed = sum(found.values()) >= MOST and failures() > before
    if max(found.values()) >= MOST or is_mixed:
        break
what = "both" if max(found.values()) < MOST else max(found, key=found.get)
is_scarce = found["huge"] < MOST and (failures() > before or is_refused())
print(what, "scarce" if is_scarce else "")
# Forks on, so that the report tells what is left of other memory.
for _ in range(200):
    fork()
