# A web server on a socket that forks a child for each request and changes its heap before each fork: the child checks
# that it has what the server had then, and answers with the number of the request.

import http.server
import signal
import socketserver
import sys

COUNT, LENGTH = 16384, 4096


def block(salt):
    return bytes([salt % 251]) * LENGTH


# 64 MiB.
blocks = [block(number) for number in range(COUNT)]


def place(request):
    # Another one for each of so many requests, since the factor is odd.
    return request * 61 % COUNT


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        last = self.server.requests
        changed = all(blocks[place(number)] == block(number + 7) for number in range(1, last + 1))
        later = range(last + 1, last + 400)
        kept = all(blocks[place(number)] == block(place(number)) for number in later)
        body = f"{last} {'right' if changed and kept else 'wrong'}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    requests = 0
    request_queue_size = 64

    def process_request(self, request, client_address):
        self.requests += 1
        assert self.requests + 400 < COUNT
        blocks[place(self.requests)] = block(self.requests + 7)
        super().process_request(request, client_address)


# Ends as a program ends: by `exit`, with what the object does then.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Server(sys.argv[1], Handler) as server:
    open(sys.argv[1] + ".ready", "w").close()
    server.serve_forever()
