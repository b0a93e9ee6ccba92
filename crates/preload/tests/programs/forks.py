# Forks until most of its memory is frozen or in huge pages, and prints which. `waits` after each fork, `hurries` from
# one to the next, or forks `once` and only waits.

import os
import sys
import time

way = sys.argv[1]
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


for number in range(100 if way == "once" else 10000):
    if way != "once" or number == 0:
        fork()
    if way != "hurries":
        time.sleep(1)
    done = [what for what, kilobytes in figures().items() if kilobytes >= 60 << 10]
    if done:
        print(done[0])
        break
# Forks on, so that the report tells what is left of other memory.
for _ in range(200):
    fork()
