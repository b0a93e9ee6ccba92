"""Configures gunicorn: python3 -m gunicorn -c web_configuration.py web_application:application"""

import gc
import os

preload_app = True
workers = 4
bind = os.environ.get("WEB_BIND", "127.0.0.1:8000")

way = os.environ.get("WEB_WAY", "frozen")
if way == "gc":

    def when_ready(server):
        """Does what can be done without this package."""
        gc.collect()
        gc.freeze()

elif way == "frozen":
    # ANCHOR: hook
    from palimpsest.gunicorn import *  # noqa: F401,F403
    # ANCHOR_END: hook
