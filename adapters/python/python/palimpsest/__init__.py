"""Freezing a Python process, so that it forks in constant time.

freeze() replaces the private memory of this process in place, and forks copy no page tables for it from then on;
survey() returns what it would do, report() what it did. fork() is os.fork() with an account of what is written to
afterwards. get_context() returns the context "frozen" of multiprocessing, install() replaces os.fork() by fork().
"""

import gc
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
    "Report",
    "Status",
    "fork",
    "freeze",
    "frozen_bytes",
    "get_context",
    "install",
    "is_served",
    "report",
    "status",
    "survey",
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


_last: Optional[Report] = None
_os_fork = os.fork

#: The answer for objects that give memory back by madvise.
_DISCARDS = "discards"


def _settings(threads, answers, least, pages, pays_within, measure):
    if isinstance(answers, str):
        raise TypeError(f"answers is the text {answers!r}: give a list of names")
    answers = list(answers)
    settings = {"threads": threads, "pages": pages, "pays_within": pays_within, "measure": measure}
    settings["answers"] = [answer for answer in answers if answer != _DISCARDS]
    if least is not None:
        settings["least"] = least
    _native.check(settings)
    return settings, _DISCARDS in answers


def _refuse_what_discards():
    """Refuses what discards memory: frozen memory then shows the bytes of the freeze; allocators count on zeros."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") or os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
        raise FreezeError(
            "this Python allocates by mimalloc, which counts on discarded memory being zero; "
            "use a build with the GIL and the default PYTHONMALLOC"
        )
    found = _native.discarding_objects()
    if found:
        names = ", ".join(sorted(found))
        raise FreezeError(
            f"{names} may give memory back by madvise and count on zeros afterwards; run the program by "
            "`palimpsest run`, which corrects such calls, freeze before it is imported, or answer for it "
            '(answers=["discards"]) if it gives none back'
        )


def is_served():
    """Returns whether `palimpsest run` (the program, not this module) serves this process, and freezes it."""
    return _native.is_preloaded()


def freeze(
    *,
    threads: str = "refuse",
    answers: Iterable[str] = (),
    least: Optional[int] = None,
    pages: str = "base",
    pays_within: Optional[int] = None,
    measure: bool = False,
    collect: bool = True,
) -> Report:
    """Freezes this process: moves its memory to sealed files that are mapped in its place, so that forks copy no page
    tables for it. A second freeze freezes what is new.

    threads: "refuse" if there are other threads, or "stop" to stop them during the freeze.
    answers: what you answer for, and what is refused otherwise: "raw-allocator", "io-uring", "locked-memory",
        "linux-aio", and "discards": loaded objects that call madvise give none of their memory back by it.
    least: mappings with fewer populated bytes are left alone; 16 pages by default.
    pages: "base", or "huge" to ask for huge pages.
    pays_within: freeze only what is expected to pay within this many forks.
    measure: time a few forks before and after, for the report.
    collect: call gc.collect() and gc.freeze() first, so that collections do not write to what exists by now.

    Raises FreezeError with the reason and a remedy; then nothing has changed.
    """
    global _last
    settings, discards_are_answered_for = _settings(threads, answers, least, pages, pays_within, measure)
    if is_served():
        raise FreezeError("`palimpsest run` serves this process, and freezes it at a fork by itself; is_served() tells")
    if not discards_are_answered_for:
        _refuse_what_discards()
    if collect:
        gc.collect()
        gc.freeze()
    _last = Report(**_native.freeze(settings))
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
