"""python -m palimpsest run app.py: runs a program and freezes it at its first fork."""

import argparse
import os
import runpy
import sys
import warnings

import palimpsest


def _size(text):
    """Reads a number of bytes; K, M and G stand for 2 to the 10th, 20th and 30th."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    try:
        number = int(text[:-1] if factor else text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, such as 2M")
    return number * (factor or 1)


def _private_bytes():
    """Returns the bytes of private memory of this process."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


class _AtFirstFork:
    """Freezes the process before its first fork at which it is big enough."""

    def __init__(self, options):
        self._options = options
        self._is_done = False

    def __call__(self):
        if self._is_done or _private_bytes() < self._options.at_size:
            return
        self._is_done = True
        options = self._options
        try:
            report = palimpsest.freeze(threads=options.threads, answers=options.trust)
        except palimpsest.FreezeError as error:
            warnings.warn(f"forks are plain: {error}", palimpsest.FreezeWarning, stacklevel=2)
            return
        if options.report:
            print(f"palimpsest: process {os.getpid()}:\n{report}", file=sys.stderr, end="", flush=True)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m palimpsest", description="Runs Python programs frozen.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a program and freeze it at its first fork")
    run.add_argument("--at-size", type=_size, default=2 << 20, metavar="BYTES",
                     help="freeze at the first fork with at least this much private memory; 2M by default")
    run.add_argument("--threads", choices=["refuse", "stop"], default="refuse",
                     help="what to do about other threads; refuse by default")
    run.add_argument("--trust", action="append", default=[], metavar="WHAT",
                     help="what you answer for, as `answers` of palimpsest.freeze")
    run.add_argument("--report", action="store_true", help="print on standard error what was frozen")
    run.add_argument("-m", action="store_true", dest="is_module", help="the program is the name of a module")
    run.add_argument("program", help="a file, or a module with -m")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(arguments=None):
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        palimpsest._check({"threads": options.threads, "answers": options.trust})
    except ValueError as error:
        parser.error(str(error))
    freeze = _AtFirstFork(options)
    if not palimpsest.is_served():
        os.register_at_fork(before=freeze)
        palimpsest.install()
    sys.argv = [options.program, *options.arguments]
    if options.is_module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        # As Python does for a program: the folder of the file behind all links, or none.
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
            sys.path[0] = os.path.dirname(os.path.realpath(options.program))
        runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
