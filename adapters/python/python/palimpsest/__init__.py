"""Freezing a Python process, so that it forks in constant time.

freeze() replaces the private memory of this process in place, and forks copy no page tables for it from then on;
survey() returns what it would do, report() what it did, thaw() takes it all back. With `pause` it freezes in slices:
freeze_slice() takes one. fork() is os.fork() with an account of what is written to afterwards. get_context() returns
the context "frozen" of multiprocessing, install() replaces os.fork() by fork().
"""

import gc
import inspect
import os
import sys
import sysconfig
import threading
import warnings
from dataclasses import dataclass
from typing import Iterable, Optional

from . import _native
from ._native import FreezeError, __version__

__all__ = [
    "FreezeError",
    "FreezeWarning",
    "Progress",
    "Report",
    "Status",
    "dismiss_deputy",
    "fork",
    "freeze",
    "freeze_slice",
    "frozen_bytes",
    "get_context",
    "install",
    "is_served",
    "next_slice",
    "progress",
    "put_off_slices",
    "report",
    "status",
    "survey",
    "thaw",
    "uninstall",
]


class FreezeWarning(RuntimeWarning):
    """The process stays unfrozen, and forks as it would without this package. The message says why."""


@dataclass(frozen=True)
class Report:
    """What a freeze did, or would do. str() returns its text."""

    frozen: int
    """Bytes that are frozen."""
    skipped: int
    """Populated bytes that are not."""
    taken: float
    """Seconds that the freeze took, without measurements."""
    fork_before: Optional[float]
    """Seconds of the shortest of a few forks before the freeze."""
    fork_after: Optional[float]
    """The same after it."""
    pays_after: Optional[int]
    """Forks after which the freeze has paid for itself, if it does."""
    verdict: str
    """"quicker", "no-benefit", "thawed" or "unmeasured"."""
    stopped: Optional[str]
    """Why it ended early, if it did. What is frozen is right nevertheless."""
    text: str
    """All of the report, in words."""

    def __str__(self):
        return self.text


@dataclass(frozen=True)
class Status:
    """What is frozen now, and what happened to it since the process began."""

    frozen: int
    """Bytes of addresses that show frozen memory."""
    extents: int
    """Sealed files that are mapped."""
    forks: int
    """Forks by fork()."""
    repairs: int
    """How often memory that was written to was made cheap again."""
    hot_pieces: int
    """Pieces of up to 2 MiB that are written to all the time, and left alone for now."""
    debt: float
    """CPU seconds that forks took beyond `clean` since the last freeze or repair."""
    clean: float
    """CPU seconds of a fork when nothing was written since the last freeze or repair; 0 if there was none."""
    price: float
    """The debt at which a repair follows, or a look at what it would take."""


@dataclass(frozen=True)
class Progress:
    """How far a freeze in slices has come."""

    stage: str
    """"none", "under-way", "done", or "ended": early, and what is frozen is right nevertheless."""
    planned: int
    """Bytes that were populated when the freeze was planned, and will be frozen."""
    frozen: int
    """Bytes frozen so far."""
    gathered: int
    """Bytes put into huge pages so far instead (pages="gather")."""
    slices: int
    """Slices so far."""
    longest: float
    """Seconds of the longest slice: how long the process was held up at most."""
    taken: float
    """Seconds of all slices together."""
    looked: float
    """Seconds of planning, before the first slice."""


_last: Optional[Report] = None
_os_fork = os.fork

#: The answer for objects that give memory back by madvise.
_DISCARDS = "discards"


def _settings(threads, answers, least, pages, pays_within, measure, pause=None, extent=None, errands="own"):
    if isinstance(answers, str):
        raise TypeError(f"answers is the text {answers!r}: give a list of names")
    answers = list(answers)
    settings = {"threads": threads, "pages": pages, "pays_within": pays_within, "measure": measure}
    settings.update(pause=pause, extent=extent, errands=errands)
    settings["answers"] = [answer for answer in answers if answer != _DISCARDS]
    if least is not None:
        settings["least"] = least
    _native.check(settings)
    return settings, _DISCARDS in answers


def _check(settings):
    """Raises TypeError or ValueError unless these can be arguments of freeze()."""
    bound = inspect.signature(freeze).bind(**settings)
    bound.apply_defaults()
    _settings(**{name: value for name, value in bound.arguments.items() if name != "collect"})


def _refuse_what_discards():
    """Refuses what discards memory: frozen memory then shows the bytes of the freeze; allocators count on zeros."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") or os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
        raise FreezeError(
            "this Python allocates by mimalloc, which counts on discarded memory being zero; "
            "use a build with the GIL and the default PYTHONMALLOC"
        )
    found = _native.discarding_objects()
    if found:
        names = ", ".join(sorted(str(path) for path in found))
        raise FreezeError(
            f"{names} may give memory back by madvise and count on zeros afterwards; run the program by "
            '`palimpsest run`, which corrects such calls, or answer for it (answers=["discards"]) if it gives none back'
        )


def is_served():
    """Returns whether `palimpsest run` (the program, not this module) serves this process, and freezes it: not if
    --only names others, and not with --no-freeze."""
    return _native.is_served()


def freeze(
    *,
    threads: str = "refuse",
    answers: Iterable[str] = (),
    least: Optional[int] = None,
    pages: str = "base",
    pays_within: Optional[int] = None,
    measure: bool = False,
    collect: bool = True,
    pause: Optional[float] = None,
    extent: Optional[int] = None,
    errands: str = "own",
) -> Report:
    """Freezes this process: moves its memory to sealed files that are mapped in its place, so that forks copy no page
    tables for it. A second freeze freezes what is new.

    threads: "refuse" if there are other threads, or "stop" to stop them during the freeze.
    answers: what you answer for, and what is refused otherwise: "raw-allocator", "io-uring", "locked-memory",
        "linux-aio", and "discards": loaded objects that call madvise give none of their memory back by it.
    least: mappings with fewer populated bytes are left alone; 16 pages by default.
    pages: "base", or "huge" to ask for huge pages; with `pause` and `pays_within` also "gather", to put memory into
        huge pages where it is, and freeze only what cannot be put there.
    pays_within: freeze only what is expected to pay within this many forks.
    measure: time a few forks before and after, for the report.
    collect: call gc.collect() and gc.freeze() first, so that collections do not write to what exists by now.
    pause: hold the process up for about so many seconds at a time. Then this call only plans: each fork() takes one
        slice before it forks, and freeze_slice() takes one whenever the program has time.
    extent: bytes of a sealed file; by default a part of what is frozen.
    errands: "own", or "deputy" to let a process that borrows this one's memory ask for huge pages between forks, so
        that nobody waits for them; see dismiss_deputy().

    Raises FreezeError with the reason and a remedy; then nothing has changed.
    """
    global _last
    settings, discards_are_answered_for = _settings(
        threads, answers, least, pages, pays_within, measure, pause, extent, errands
    )
    if is_served():
        raise FreezeError("`palimpsest run` serves this process, and freezes it at a fork by itself; is_served() tells")
    if not discards_are_answered_for:
        _refuse_what_discards()
    thaws_objects = collect and not gc.get_freeze_count()
    if collect:
        gc.collect()
        gc.freeze()
    try:
        _last = Report(**_native.freeze(settings))
    except BaseException:
        if thaws_objects:
            gc.unfreeze()
        raise
    return _last


def survey(
    *,
    threads: str = "refuse",
    answers: Iterable[str] = (),
    least: Optional[int] = None,
    pages: str = "base",
    pays_within: Optional[int] = None,
    measure: bool = False,
) -> Report:
    """Returns what freeze() would do, and changes nothing."""
    settings, discards_are_answered_for = _settings(threads, answers, least, pages, pays_within, measure)
    if not discards_are_answered_for:
        _refuse_what_discards()
    return Report(**_native.survey(settings))


def report() -> Optional[Report]:
    """Returns what the last freeze did, in this process or the one it was forked from; None if there was none."""
    return _last


def status() -> Status:
    """Returns what is frozen now."""
    return Status(**_native.status())


def freeze_slice() -> Progress:
    """Takes one slice of a freeze under way (`pause` of freeze()): call it when the program has nothing else to do.
    Does nothing if nothing is left. After a FreezeError nothing was done, and a later call may succeed."""
    return Progress(**_native.freeze_slice())


def progress() -> Progress:
    """Returns how far a freeze in slices has come."""
    return Progress(**_native.progress())


def next_slice() -> Optional[float]:
    """Returns in how many seconds a program that is about to wait should call freeze_slice(); None if no slice is due
    at waits: the freeze is done, is the parent's, or goes on at forks only."""
    return _native.next_slice()


def put_off_slices(taken: float) -> None:
    """Says that the last slice kept somebody waiting for `taken` seconds: puts off the next one at a wait, so that
    slices take at most a fifth of the time."""
    _native.put_off_slices(taken)


def dismiss_deputy() -> None:
    """Waits for a deputy (`errands` of freeze()) that is at work, for some milliseconds at most: before os.exec…(), and
    before a seccomp filter is installed."""
    _native.dismiss_deputy()


def thaw() -> None:
    """Turns all frozen memory into ordinary memory with the same bytes: forks are plain until the next freeze, and a
    freeze in slices ends. Holds other threads still if the last freeze was allowed to.

    Raises FreezeError if some memory is still frozen."""
    _native.thaw()


def frozen_bytes() -> int:
    """Returns the bytes of addresses that show frozen memory."""
    return status().frozen


def fork() -> int:
    """Forks as os.fork() does, and keeps an account of what forks take: makes memory that was written to since the
    freeze cheap again when that pays. Returns the process id of the child, and 0 in the child."""
    sys.audit("os.fork")
    child = _native.fork()
    if child and sys.version_info >= (3, 12) and threading.active_count() > 1:
        # As os.fork() does, for the threads that it knows: those that Python has started.
        warnings.warn(
            f"This process (pid={os.getpid()}) is multi-threaded, use of fork() may lead to deadlocks in the child.",
            DeprecationWarning,
            stacklevel=2,
        )
    return child


def install() -> None:
    """Replaces os.fork() by fork(), for callers of that name (multiprocessing, gunicorn), and makes
    multiprocessing.get_context("frozen") return the context of get_context()."""
    from .context import register

    os.fork = fork
    register()


def uninstall() -> None:
    """Puts the original os.fork() back."""
    os.fork = _os_fork


def get_context(**settings):
    """Returns the context "frozen" of multiprocessing, whose first process freezes this one. `settings` are those of
    freeze(), and `refused`: "warn" (the default) to go on unfrozen with a FreezeWarning, or "raise"."""
    from .context import FrozenContext

    return FrozenContext(**settings)
