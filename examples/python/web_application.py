"""An application that loads much data when it is imported, for gunicorn with preload_app."""

import os

import palimpsest

#: Size of the heap in megabytes, about.
SIZE = int(os.environ.get("WEB_HEAP_MIB", "64"))

heap = {number: str(number) * 50 for number in range(SIZE * 2300)}


def look(number):
    """Returns the length of a hundred entries of the heap, different ones for each number."""
    return sum(len(heap[(number * 7919 + step * 104729) % len(heap)]) for step in range(100))


def application(environ, start_response):
    """Answers from the heap."""
    length = look(int(environ.get("QUERY_STRING") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    report = palimpsest.report()
    return [f"{length} {os.getpid()} {report.frozen if report else 0}".encode()]
