"""An application that loads much data when it is imported, for uvicorn:

python -m palimpsest.uvicorn asgi_application:application --workers 4
"""

import os

import palimpsest
from web_application import look


async def application(scope, receive, send):
    """Answers from a hundred entries of the heap, different ones for each request."""
    if scope["type"] != "http":
        return
    length = look(int(scope["query_string"] or 0))
    report = palimpsest.report()
    body = f"{length} {os.getpid()} {report.frozen if report else 0}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
