"""Starts the application plain, with gc.freeze() alone (gunicorn), and frozen; sends many requests to each; prints its
memory and how long a worker takes to start.

python3 web_measure.py --mib 500 --requests 2000 --server gunicorn
"""

import argparse
import importlib.metadata
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


def workers(server):
    """Returns the process ids of the four; a server may have a child besides, which answers nobody."""
    return [pid for pid in children(server.pid) if b"resource_tracker" not in command_line(pid)]


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def replace(server):
    """Ends a worker, and returns the seconds until there are four again, the master's delay in noticing included."""
    old = workers(server)
    os.kill(old[0], signal.SIGKILL)
    begin = time.monotonic()
    while True:
        now = workers(server)
        if len(now) == len(old) and old[0] not in now:
            return time.monotonic() - begin


def command_of(server, way, path):
    """Returns what starts a server with four workers at the socket `path`."""
    if server == "gunicorn":
        return ["-m", "gunicorn", "-c", "web_configuration.py", "web_application:application"]
    module = "palimpsest.uvicorn" if way == "frozen" else "uvicorn"
    return ["-m", module, "asgi_application:application", "--workers", "4", "--uds", path, "--log-level", "warning"]


def must_replace_workers():
    """Ends the program if uvicorn leaves a killed worker dead, as it did before 0.30."""
    version = importlib.metadata.version("uvicorn")
    if tuple(map(int, version.split(".")[:2])) < (0, 30):
        raise SystemExit(f"uvicorn {version} replaces no workers: 0.30 or newer does")


def wait_for_answers(server, path):
    """Waits until somebody answers."""
    while True:
        try:
            return ask(path, 0)
        except (FileNotFoundError, ConnectionRefusedError):
            if server.poll() is not None:
                raise SystemExit(f"the server has ended with {server.returncode}")
            time.sleep(0.001)


def serve(options, way):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        environment = {**os.environ, "WEB_HEAP_MIB": str(options.mib), "WEB_BIND": f"unix:{path}", "WEB_WAY": way}
        command = [sys.executable, *command_of(options.server, way, path)]
        server = subprocess.Popen(command, cwd=HERE, env=environment, stderr=subprocess.DEVNULL)
        try:
            while len(workers(server)) != 4:
                if server.poll() is not None:
                    raise SystemExit(f"the server has ended with {server.returncode}")
                time.sleep(0.001)
            wait_for_answers(server, path)
            answering = {ask(path, number)[1] for number in range(options.requests)}
            memory = ask(path, 0)[2] + sum(map(proportional, [server.pid, *children(server.pid)]))
            tables = sum(map(page_tables, [server.pid, *children(server.pid)]))
            starts = sorted(replace(server) for _ in range(5))
            answers = sum(ask(path, number)[0] for number in range(100))
        finally:
            server.terminate()
            server.wait()
    return answers, {
        "server": options.server,
        "way": way,
        "answering_workers": len(answering),
        "memory_mib": memory >> 20,
        "page_tables_kib": tables >> 10,
        "worker_ms": round(starts[len(starts) // 2] * 1000, 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--server", choices=["gunicorn", "uvicorn"], default="gunicorn")
    options = parser.parse_args()
    ways = ("plain", "gc", "frozen")
    if options.server == "uvicorn":
        must_replace_workers()
        ways = ("plain", "frozen")
    served = [serve(options, way) for way in ways]
    assert len({answers for answers, _ in served}) == 1, "the answers differ"
    for _, found in served:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
