"""Counts, in the compiled programs of the corpus, what two passes could take away: moves whose result nobody reads, and
loads of stack slots whose value a register still holds.

    cargo build --release && python3 docs/records/2026-11-26-bpf/passes.py target/release/palimpsest FILE.o…

Instructions are counted where they stand, not how often they run. A slot is followed within a basic block, and forgotten
at calls of helpers, stores through other registers, and stores that overlap it."""
import json
import re
import subprocess
import sys

REGISTERS = re.compile(r"\b[rw](10|[0-9])\b")
TARGET = re.compile(r"goto ([+-]\d+)$")
STACK = re.compile(r"\*\((?:u|s)(\d+) \*\)\(r10 ([+-]) (\d+)\)")


def programs(text):
    name, lines = None, []
    for line in text.splitlines():
        if not line.startswith(" ") and line.endswith(":"):
            if lines:
                yield name, lines
            name, lines = line[:-1], []
            continue
        found = re.match(r"\s*(\d+): (.*)$", line)
        if found:
            lines.append((int(found[1]), found[2].strip()))
    if lines:
        yield name, lines


def numbers(text):
    return {int(number) for number in REGISTERS.findall(text)}


def facts(line):
    """Returns what a line reads, what it writes, and whether it only moves."""
    if line.startswith("exit"):
        return {0, 6, 7, 8, 9, 10}, set(), False
    if line.startswith("call") or line.startswith("callx"):
        return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10} | numbers(line), {0, 1, 2, 3, 4, 5}, False
    if line.startswith("if ") or line.startswith("goto") or line.startswith("may_goto"):
        return numbers(line), set(), False
    # Atomic operations have forms with side effects: they read and keep everything.
    left, sign, right = line.partition(" = ")
    if not sign or "lock" in line or "atomic" in line or "cmpxchg" in line or "xchg" in line:
        found = re.match(r"([rw])(10|[0-9]) (\S*)= (.*)$", line)
        if found and "lock" not in line:
            return {int(found[2])} | numbers(found[4]), {int(found[2])}, False
        return set(range(11)), set(), False
    if left.startswith("*("):
        return numbers(left) | numbers(right), set(), False
    found = re.fullmatch(r"[rw](10|[0-9])", left)
    if not found:
        return set(range(11)), set(), False
    is_move = re.fullmatch(r"(\(s\d+\) ?)?[rw](10|[0-9])|-?(0x)?[0-9a-f]+( ll)?", right) is not None
    return numbers(right), {int(found[1])}, is_move


def look(lines):
    index = {slot: at for at, (slot, _) in enumerate(lines)}
    following, leaders = [], {0}
    for at, (slot, line) in enumerate(lines):
        to = set()
        end = lines[at + 1][0] if at + 1 < len(lines) else None
        found = TARGET.search(line)
        if found:
            # Jumps count from the next slot.
            target = index.get(slot + 1 + int(found[1]))
            if target is not None:
                to.add(target)
                leaders.add(target)
        if not line.startswith("exit") and not line.startswith("goto") and end is not None:
            to.add(at + 1)
        if found or line.startswith("exit"):
            leaders.add(at + 1)
        following.append(to)
    told = [facts(line) for _, line in lines]
    live = [set() for _ in lines]
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(lines))):
            after = set().union(*(live[to] for to in following[at])) if following[at] else set()
            reads, writes, _ = told[at]
            now = reads | (after - writes)
            if now != live[at]:
                live[at], changed = now, True
    dead = 0
    for at, (reads, writes, is_move) in enumerate(told):
        after = set().union(*(live[to] for to in following[at])) if following[at] else set()
        dead += is_move and not writes & after
    loads, known, held = 0, {}, 0
    for at, (_, line) in enumerate(lines):
        if at in leaders:
            known = {}
        reads, writes, _ = told[at]
        slot = STACK.search(line)
        if slot:
            length, offset = int(slot[1]) // 8, int(slot[3]) * (-1 if slot[2] == "-" else 1)
        if slot and line.startswith("*("):
            known = {place: who for place, who in known.items()
                     if place[0] + place[1] <= offset or offset + length <= place[0]}
            source = re.fullmatch(r"r(10|[0-9])", line.partition(" = ")[2])
            if source:
                known[(offset, length)] = int(source[1])
            continue
        if line.startswith("*("):
            known = {}
            continue
        is_load = slot is not None and re.match(r"r(10|[0-9]) = \*\(", line)
        if is_load:
            loads += 1
            held += known.get((offset, length)) is not None and length == 8
        known = {place: who for place, who in known.items() if who not in writes}
        if line.startswith("call"):
            known = {}
        if is_load:
            known[(offset, length)] = int(is_load[1])
    return len(lines), dead, loads, held


def main():
    program, files = sys.argv[1], sys.argv[2:]
    all_of = [0, 0, 0, 0]
    count = 0
    for file in files:
        done = subprocess.run([program, "bpf", "disasm", file], capture_output=True, text=True)
        for _, lines in programs(done.stdout):
            count += 1
            for place, number in enumerate(look(lines)):
                all_of[place] += number
    print(json.dumps({"programs": count, "instructions": all_of[0], "moves that nobody reads": all_of[1],
                      "loads of stack slots": all_of[2], "of these with the value in a register": all_of[3]}))


main()
