"""Hooks for gunicorn. In its configuration file:

    preload_app = True
    from palimpsest.gunicorn import *

The master freezes when it has loaded the application and before it forks its first worker, and forks by
palimpsest.fork() from then on. palimpsest.gunicorn.settings are the arguments of palimpsest.freeze(); change them
before.
"""

import palimpsest

__all__ = ["when_ready"]

#: Arguments of palimpsest.freeze().
settings = {}


def when_ready(server):
    """Freezes the master. gunicorn calls this when it has bound its sockets and preloaded the application."""
    if not getattr(server.cfg, "preload_app", False):
        server.log.warning("palimpsest: nothing is frozen: the application is loaded by each worker; set preload_app")
        return
    if palimpsest.is_served():
        server.log.info("palimpsest: `palimpsest run` freezes this process at its first fork")
        return
    try:
        report = palimpsest.freeze(**settings)
    except palimpsest.FreezeError as error:
        server.log.warning("palimpsest: workers are forked unfrozen: %s", error)
        return
    palimpsest.install()
    server.log.info("palimpsest: froze %d MiB in %d ms", report.frozen >> 20, report.taken * 1000)
