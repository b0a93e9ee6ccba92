"""The context "frozen" of multiprocessing: as "fork", but the parent is frozen before its first child."""

import multiprocessing.context
import multiprocessing.process
import os
import warnings
from multiprocessing import popen_fork, util

import palimpsest

__all__ = ["FrozenContext"]


class _Popen(popen_fork.Popen):
    """A child of palimpsest.fork()."""

    method = "frozen"

    def _launch(self, process):
        # The child ends when the reader below is closed, and the parent's sentinel is readable when the child ends.
        sentinel, childs_end = os.pipe()
        reader, parents_end = os.pipe()
        self.pid = palimpsest.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(sentinel)
                os.close(parents_end)
                code = process._bootstrap(parent_sentinel=reader)
            finally:
                os._exit(code)
        os.close(childs_end)
        os.close(reader)
        self.sentinel = sentinel
        self.finalizer = util.Finalize(self, util.close_fds, (sentinel, parents_end))


class FrozenContext(multiprocessing.context.BaseContext):
    """See palimpsest.get_context()."""

    _name = "frozen"

    def __init__(self, *, refused="warn", **settings):
        if refused not in ("warn", "raise"):
            raise ValueError(f'refused is {refused!r}: known are "warn", "raise"')
        super().__init__()
        self._refused = refused
        self._settings = settings
        self._owner = None
        # As the contexts of multiprocessing have it: the class finds its context.
        context = self

        class FrozenProcess(multiprocessing.process.BaseProcess):
            # What the child's own default is: its memory is frozen as it is.
            _start_method = "fork"

            @staticmethod
            def _Popen(process):
                context.freeze()
                return _Popen(process)

        self.Process = FrozenProcess

    def freeze(self):
        """Freezes this process, unless this context has done so, or was refused. Children of a frozen process are
        frozen already."""
        if self._owner is not None or palimpsest.is_served():
            return
        self._owner = os.getpid()
        if palimpsest.frozen_bytes():
            return
        try:
            palimpsest.freeze(**self._settings)
        except palimpsest.FreezeError as error:
            if self._refused == "raise":
                self._owner = None
                raise
            warnings.warn(f"children are forked unfrozen: {error}", palimpsest.FreezeWarning, stacklevel=5)

    def get_start_method(self, allow_none=False):
        return self._name

    def set_start_method(self, method, force=False):
        raise ValueError("cannot set start method of concrete context")

    def _check_available(self):
        """It is, where this package is."""


def register():
    """Has multiprocessing.get_context("frozen") find a context with the defaults. Its table is no public interface:
    where it is not as known, nothing is changed, and False is the answer."""
    contexts = getattr(multiprocessing.context, "_concrete_contexts", None)
    if not isinstance(contexts, dict) or "fork" not in contexts:
        return False
    contexts.setdefault("frozen", FrozenContext())
    return True
