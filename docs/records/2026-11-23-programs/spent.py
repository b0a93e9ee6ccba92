"""Processor time and page faults of a command and all that it starts, with each object in turn (`-` for none):

    python3 spent.py ROUNDS "COMMAND" - OBJECT...

The commands of the record: `make -s -f Makefile`, and `bash -c 'for ((i=0;i<400;i++)); do (:); done'` in a file.
"""

import os
import resource
import statistics
import sys

rounds, command, objects = int(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
spent = {name: [] for name in objects}
for number in range(rounds):
    start = number % len(objects)
    for name in objects[start:] + objects[:start]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PALIMPSEST", "LD_"))}
        if name != "-":
            environment.update(LD_PRELOAD=name, PALIMPSEST_STARTED="1-2", PALIMPSEST_FILTERS="0")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
        child = os.posix_spawn("/usr/bin/env", ["env", *command], environment, file_actions=quiet)
        os.waitpid(child, 0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        time = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        spent[name].append((1e3 * time, after.ru_minflt - before.ru_minflt))
for name in objects:
    times = sorted(time for time, _ in spent[name])
    faults = statistics.median(faults for _, faults in spent[name])
    quartile, median = times[len(times) // 4], statistics.median(times)
    print(f"{os.path.basename(name):12} {faults:8.0f} faults, ms: {times[0]:.0f} {quartile:.0f} {median:.0f}")
