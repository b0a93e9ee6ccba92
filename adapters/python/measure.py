#!/usr/bin/env python3
"""Prints what a data loader's workers cost, plain and frozen: lines of an id, a unit and a value.

    measure.py --samples [MIB…]     2048 MiB of samples, if no number is named

`cargo xtask bench adapters` makes a record of them."""

import json
import subprocess
import sys
from pathlib import Path

LOADER = Path(__file__).resolve().parents[2] / "examples/python/data_loader.py"
ROUNDS = 3


def measured(mib, context):
    arguments = [sys.executable, str(LOADER), "--bytes", f"{mib}M", "--context", context]
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main():
    sizes = [int(argument) for argument in sys.argv[1:] if argument != "--samples"] or [2048]
    for mib in sizes:
        # Who is in one group stands together.
        lines = {"start": [], "freeze": [], "bytes": []}
        for _round in range(ROUNDS):
            for context in ("fork", "frozen"):
                told = measured(mib, context)
                lines["start"].append((context, "ms", told["start_ms"]))
                lines["bytes"].append((context, "bytes", told["memory_mib"] << 20))
                if context == "frozen":
                    lines["freeze"].append((context, "ms", told["freeze_ms"]))
        for what, values in lines.items():
            for context, unit, value in values:
                print(f"python.{what}.{mib}.{context} {unit} {value}")


main()
