"""uvicorn whose workers are forks of a frozen parent. Instead of `uvicorn APP --workers 4`:

    python -m palimpsest.uvicorn APP --workers 4

with all options of uvicorn; programs that call uvicorn.run(…, workers=4) call palimpsest.uvicorn.install() before.

uvicorn itself starts its workers anew, and each imports the application. Here the parent imports it, freezes, and forks
them. So a worker that SIGHUP restarts has the code that the parent imported: for changed sources start the server anew.
palimpsest.uvicorn.settings are the arguments of palimpsest.freeze(), and `refused`; they are read when the application
is imported and the first worker is made.
"""

import importlib
import signal
import sys
import warnings

import palimpsest

from .context import FrozenContext

__all__ = ["install"]

#: Arguments of palimpsest.get_context().
settings = {}


def _handlers():
    """Returns the handler of each signal that has one in Python."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in handlers.items() if callable(handler)}


class _Workers(FrozenContext):
    """Makes workers whose signals do what they do in a process that uvicorn starts anew."""

    def __init__(self, handlers, **settings):
        """`handlers` are those of the application, by signal."""
        super().__init__(**settings)
        context = self

        class Worker(self.Process):
            @staticmethod
            def _Popen(process):
                # Before signals are blocked, since what it starts would inherit that.
                context.freeze()
                # A signal for the child waits until the child has its own handlers: the parent's would swallow it.
                process._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers())
                try:
                    return super(Worker, Worker)._Popen(process)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, process._mask)

            def run(self):
                # As after exec.
                for number in _handlers():
                    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
                super().run()

        self.Process = Worker


def _load(name):
    """Imports the application. What it does about signals is for the workers: the parent keeps its own handlers, and
    those of the application are returned."""
    from uvicorn.importer import import_from_string

    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    import_from_string(name)
    found = {}
    for number, handler in before.items():
        after = signal.getsignal(number)
        # `None` is a handler that is not Python's.
        if None not in (handler, after) and after != handler:
            found[number] = after
            signal.signal(number, handler)
    return found


class _Context:
    """Takes the place of uvicorn's context "spawn": imports the application before the first worker is made."""

    def __init__(self, spawn):
        self._spawn = spawn
        self._workers = None

    def __getattr__(self, name):
        return getattr(self._spawn, name)

    def Process(self, *arguments, **named):
        config = named["kwargs"]["config"]
        # Who wants changed sources to be read again must not get what was imported before.
        if config.should_reload:
            return self._spawn.Process(*arguments, **named)
        if self._workers is None:
            handlers = _load(config.app) if isinstance(config.app, str) else {}
            # Read only now: the application may have changed them.
            self._workers = _Workers(handlers, **settings)
        return self._workers.Process(*arguments, **named)


def _module():
    """Returns uvicorn's module that starts workers: its name is no public interface."""
    for name in ("uvicorn._subprocess", "uvicorn.subprocess"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(getattr(module, "spawn", None), "Process"):
            return module
    return None


def install():
    """Makes uvicorn's workers forks of this process, which freezes itself before the first one. Returns whether this
    version of uvicorn is known; otherwise its workers stay as they are, with a FreezeWarning."""
    module = _module()
    if module is None:
        import uvicorn

        warnings.warn(
            f"uvicorn {uvicorn.__version__} starts workers in a way that is not known: each loads the application; "
            "run it under gunicorn instead",
            palimpsest.FreezeWarning,
            stacklevel=2,
        )
        return False
    if not isinstance(module.spawn, _Context):
        module.spawn = _Context(module.spawn)
    return True


def main():
    """Runs uvicorn's command line."""
    from uvicorn.main import main as command

    install()
    sys.argv[0] = "uvicorn"
    command()


if __name__ == "__main__":
    # This file runs as a second module, `__main__`; whoever imports palimpsest.uvicorn means the other one.
    from palimpsest.uvicorn import main

    main()
