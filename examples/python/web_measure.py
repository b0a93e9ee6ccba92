"""Starts the application plain, with gc.freeze() alone, and frozen; sends many requests to each; prints its memory and
how long a worker takes to start.

python3 web_measure.py --mib 500 --requests 2000
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from data_loader import page_tables, proportional

HERE = os.path.dirname(os.path.abspath(__file__))


def ask(path, number):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(path)
        asking.sendall(f"GET /?{number} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while part := asking.recv(4096):
            answer += part
    length, worker, frozen = answer.split(b"\r\n\r\n", 1)[1].split()
    return int(length), int(worker), int(frozen)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def wait_for_children(server, count):
    while len(found := children(server.pid)) != count:
        if server.poll() is not None:
            raise SystemExit(f"gunicorn has ended with {server.returncode}")
        time.sleep(0.001)
    return found


def replace(server, path):
    """Ends a worker, and returns the seconds until there are four again, the master's delay in noticing included."""
    old = children(server.pid)
    os.kill(old[0], signal.SIGKILL)
    begin = time.monotonic()
    while True:
        now = children(server.pid)
        if len(now) == len(old) and old[0] not in now:
            return time.monotonic() - begin


def serve(mib, requests, way):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        environment = {**os.environ, "WEB_HEAP_MIB": str(mib), "WEB_BIND": f"unix:{path}", "WEB_WAY": way}
        command = [sys.executable, "-m", "gunicorn", "-c", "web_configuration.py", "web_application:application"]
        server = subprocess.Popen(command, cwd=HERE, env=environment, stderr=subprocess.DEVNULL)
        try:
            wait_for_children(server, 4)
            workers = {ask(path, number)[1] for number in range(requests)}
            memory = ask(path, 0)[2] + sum(map(proportional, [server.pid, *children(server.pid)]))
            tables = sum(map(page_tables, [server.pid, *children(server.pid)]))
            starts = sorted(replace(server, path) for _ in range(5))
            answers = sum(ask(path, number)[0] for number in range(100))
        finally:
            server.terminate()
            server.wait()
    return answers, {
        "way": way,
        "answering_workers": len(workers),
        "memory_mib": memory >> 20,
        "page_tables_kib": tables >> 10,
        "worker_ms": round(starts[len(starts) // 2] * 1000, 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    served = [serve(options.mib, options.requests, way) for way in ("plain", "gc", "frozen")]
    assert len({answers for answers, _ in served}) == 1, "the answers differ"
    for _, found in served:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
