"""For gunicorn --preload: a large heap made before the workers are forked, and answers that depend on all of it."""
import json
import os
import random
import zlib

dice = random.Random(2)
TABLE = {str(number): [number, str(dice.random())] for number in range(150000)}
BLOBS = [bytearray(dice.randbytes(200000)) for _ in range(100)]
served = 0


def application(environ, start_response):
    global served
    served += 1
    key = environ["QUERY_STRING"]
    crc = zlib.crc32(repr(TABLE).encode())
    for blob in BLOBS:
        crc = zlib.crc32(blob, crc)
    before = crc
    # Each worker changes what it alone must see.
    TABLE[key] = served
    BLOBS[served % len(BLOBS)][0] ^= 255
    body = json.dumps({"pid": os.getpid(), "served": served, "crc": before, "known": key in TABLE}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
