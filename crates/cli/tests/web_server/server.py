"""A web server with state in tens of megabytes, which forks. `server.py threads` serves each request in a thread."""
import http.server
import os
import sys
import threading

KEYS = 40_000
data = {number: f'{number:01000}' for number in range(KEYS)}
total = KEYS * 1000
counts = {}
lock = threading.Lock()


def answer(name, wants_fork):
    """Counts the requests of a client, changes the state, and has a child add it all up if that is wanted."""
    global total
    counts[name] = count = counts.get(name, 0) + 1
    key = count * 7919 % KEYS
    new = name * (1 + count % 300)
    total += len(new) - len(data[key])
    data[key] = new
    status = 0
    if wants_fork:
        child = os.fork()
        if child == 0:
            os._exit(sum(map(len, data.values())) != total or counts[name] != count)
        status = os.waitpid(child, 0)[1]
    return f'{name} {count} {status}'


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        _, name, what = self.path.split('/')
        with lock:
            body = answer(name, what == 'fork').encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if what == 'end':
            os._exit(0)

    def log_message(self, *_):
        pass


has_threads = sys.argv[1:] == ['threads']
kind = http.server.ThreadingHTTPServer if has_threads else http.server.HTTPServer
with kind(('127.0.0.1', 0), Handler) as server:
    print(server.server_port, flush=True)
    while True:
        server.handle_request()
