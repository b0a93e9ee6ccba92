"""Redis servers with 700 MB take turns: python3 redis.py TURNS WAY...
A WAY is plain, huge, or NAME=OBJECT, where OBJECT is a palimpsest object that is loaded as `palimpsest run` does it.
Milliseconds of forks as Redis reports them. The saving child is killed at once."""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

KEYS, VALUE = 1_250_000, "v" * 400
# Writes before each fork, and to how many keys.
STATES = {"idle": (0, 1), "same100k": (100_000, 1), "set1k": (1000, KEYS), "hot100k": (100_000, 1000),
          "set100k": (100_000, KEYS), "rested": (0, 1)}
MASK = (1 << 64) - 1


class Server:
    def __init__(self, way):
        self.way, _, self.object = way.partition("=")
        self.folder, self.dice = tempfile.mkdtemp(), 88_172_645_463_325_252
        environment, disable = dict(os.environ), "yes"
        if way == "huge":
            environment["MALLOC_CONF"], disable = "thp:always", "no"
        if self.object:
            environment |= {"LD_PRELOAD": self.object, "PALIMPSEST_PAUSE": "2ms", "PALIMPSEST_PAYS_AFTER": "100",
                            "PALIMPSEST_THREADS": "stop"}
        path = f"{self.folder}/socket"
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--save", "", "--enable-debug-command", "yes", "--dir", self.folder,
             "--disable-thp", disable, "--unixsocket", path], env=environment, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.05)
        self.answers = self.socket.makefile("rb")
        self.ask("DEBUG", "POPULATE", str(KEYS), "key", str(len(VALUE)))

    def answer(self):
        line = self.answers.readline()
        if line[:1] == b"$":
            length = int(line[1:])
            return self.answers.read(length + 2)[:length].decode()
        return line.decode().strip()

    def ask(self, *words):
        parts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self.socket.sendall(f"*{len(words)}\r\n{parts}".encode())
        return self.answer()

    def told(self, field):
        return re.search(field + r":(\S+)", self.ask("INFO")).group(1)

    def fork(self):
        self.ask("BGSAVE")
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGUSR1)
        while self.told("rdb_bgsave_in_progress") != "0":
            time.sleep(0.002)
        return int(self.told("latest_fork_usec")) / 1e3

    def write(self, writes, keys):
        for batch in range(0, writes, 500):
            many, text = min(500, writes - batch), ""
            for _ in range(many):
                self.dice ^= self.dice << 13 & MASK
                self.dice ^= self.dice >> 7
                self.dice ^= self.dice << 17 & MASK
                key = f"key:{self.dice % keys * (KEYS // keys)}"
                text += f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${len(VALUE)}\r\n{VALUE}\r\n"
            self.socket.sendall(text.encode())
            for _ in range(many):
                self.answer()


turns = int(sys.argv[1])
servers = [Server(way) for way in sys.argv[2:]]
print("first    ", " ".join(f"{server.way} {server.fork():.2f}" for server in servers))
time.sleep(3)
for state, (writes, keys) in STATES.items():
    times = {server: [] for server in servers}
    for turn in range(turns):
        for server in servers[turn % len(servers):] + servers[:turn % len(servers)]:
            if state == "rested":
                time.sleep(0.5)
            server.write(writes, keys)
            times[server].append(server.fork())
    rival = next((sorted(all)[turns // 2] for server, all in times.items() if server.way == "huge"), None)
    for server, all in times.items():
        all.sort()
        least, lower, median, upper, most = (all[at * (turns - 1) // 4] for at in range(5))
        ratio = f"{median / rival:.2f}" if rival else ""
        print(f"{state:9} {server.way:9} least {least:6.2f} quartiles {lower:6.2f} {median:6.2f} {upper:6.2f} "
              f"most {most:6.2f}  of huge pages' median {ratio}", flush=True)
for server in servers:
    server.process.terminate()
    server.process.wait()
