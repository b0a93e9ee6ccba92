"""The context "frozen" of multiprocessing: like "fork", but the parent is frozen before its first child."""

import multiprocessing.context
import multiprocessing.process
import os
import posix
import warnings
from multiprocessing import popen_fork

import palimpsest

__all__ = ["FrozenContext"]


class _Popen(popen_fork.Popen):
    """A child of palimpsest.fork()."""

    def _launch(self, process):
        # What the child must do before and after its work differs between versions of Python. So their code does it,
        # and calls os.fork, which is replaced meanwhile; another thread that forks now gets a fork that is as good. A
        # fork that somebody else has put there (gevent) stays, since they need it.
        theirs = os.fork
        if theirs is posix.fork:
            os.fork = palimpsest.fork
        try:
            super()._launch(process)
        finally:
            if theirs is posix.fork:
                os.fork = theirs


class FrozenContext(multiprocessing.context.BaseContext):
    """See palimpsest.get_context()."""

    # Children are forks. multiprocessing and concurrent.futures go by this name: they start all workers before their
    # own threads, make semaphores without names, and tell it to children of other contexts.
    _name = "fork"

    def __init__(self, *, refused="warn", **settings):
        if refused not in ("warn", "raise"):
            raise ValueError(f'refused is {refused!r}: known are "warn", "raise"')
        if not isinstance(settings.get("answers", ""), str):
            # Looked at here and at the freeze, which an iterator would not survive.
            settings["answers"] = list(settings["answers"])
        palimpsest._check(settings)
        super().__init__()
        self._refused = refused
        self._settings = settings
        self._owner = None
        # As in the contexts of multiprocessing, the class refers to its context.
        context = self

        class FrozenProcess(multiprocessing.process.BaseProcess):
            # The default of the child itself: its memory is frozen already.
            _start_method = "fork"

            @staticmethod
            def _Popen(process):
                context.freeze()
                return _Popen(process)

        self.Process = FrozenProcess

    def freeze(self):
        """Freezes this process, unless this context did so before or was refused. Children of a frozen process are
        frozen already."""
        if self._owner is not None or palimpsest.is_served():
            return
        try:
            if not palimpsest.frozen_bytes():
                palimpsest.freeze(**self._settings)
        except palimpsest.FreezeError as error:
            if self._refused == "raise":
                raise
            warnings.warn(f"children are forked unfrozen: {error}", palimpsest.FreezeWarning, stacklevel=5)
        self._owner = os.getpid()

    def get_start_method(self, allow_none=False):
        return self._name

    def set_start_method(self, method, force=False):
        raise ValueError("cannot set start method of concrete context")

    def _check_available(self):
        """Does nothing: the context is available wherever this package is."""


def register():
    """Makes multiprocessing.get_context("frozen") return a context with the defaults. The table for this is no public
    interface: if it does not look as expected, changes nothing and returns False."""
    contexts = getattr(multiprocessing.context, "_concrete_contexts", None)
    if not isinstance(contexts, dict) or "fork" not in contexts:
        return False
    contexts.setdefault("frozen", FrozenContext())
    return True
