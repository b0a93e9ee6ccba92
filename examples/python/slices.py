"""A service on asyncio that is frozen a millisecond at a time, whenever it has nothing else to do."""

import asyncio
import json
import os
import time

import palimpsest

MIB = int(os.environ.get("SLICES_MIB", "64"))


# ANCHOR: slices
async def freeze_when_idle():
    palimpsest.freeze(pause=0.001)
    while (rest := palimpsest.next_slice()) is not None:
        await asyncio.sleep(rest)
        begin = time.monotonic()
        palimpsest.freeze_slice()
        # Whoever has come meanwhile goes first.
        palimpsest.put_off_slices(time.monotonic() - begin)
        await asyncio.sleep(0)
# ANCHOR_END: slices


async def serve(heap):
    """Answers requests meanwhile."""
    freezing = asyncio.create_task(freeze_when_idle())
    answers = 0
    while not freezing.done():
        heap[answers % len(heap)] = 7
        answers += 1
        await asyncio.sleep(0)
    freezing.result()
    return answers


def main():
    heap = bytearray(MIB << 20)
    answers = asyncio.run(serve(heap))
    child = palimpsest.fork()
    if child == 0:
        os._exit(0 if heap[0] == 7 and heap[-1] == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    done = palimpsest.progress()
    told = {"stage": done.stage, "frozen_mib": done.frozen >> 20, "slices": done.slices, "answers": answers}
    print(json.dumps({**told, "longest_ms": round(done.longest * 1000, 1)}))


if __name__ == "__main__":
    main()
