"""Writes seeds of `bpf_run` that chance makes seldom: `arithmetic-*`, every operation with constants at which the
compilers change their ways, and `atomic-*`, every atomic operation where the upper half of registers is in use.

    python3 fuzz/seeds/bpf_run.py

The form of an input is told in `fuzz_targets/bpf_run.rs`."""
from pathlib import Path

FOLDER = Path(__file__).with_suffix("")
REGISTERS = 9
# In the order of `AluOp::ALL` and `AtomicOp::ALL`.
OR, XOR = 7, 9
OPERATIONS, ATOMICS = 14, 10
# The kind of a constant, above the power of two: itself, one less, its negative.
KINDS = (4, 5, 6)
POWERS = (0, 1, 7, 8, 15, 16, 30, 31)
# Of a constant of 32 bits that says nothing else.
MOST = 200


def random(seed):
    """Returns numbers of 64 bits that follow from `seed`: xorshift."""
    while True:
        seed ^= seed << 13 & (1 << 64) - 1
        seed ^= seed >> 7
        seed ^= seed << 17 & (1 << 64) - 1
        yield seed


def operation(op, dst, wide, constant=None, register=0):
    kind = 0 if constant is None else 0x80
    return bytes([0, dst, kind | (0x40 if wide else 0), register if constant is None else constant, 0, 0, op, 0])


def load(dst, number):
    """A constant of 40 bits, shifted to the left so that the upper half is in use."""
    return bytes([7, dst, 24, number & 0xFF]) + (number >> 8 & 0xFFFF_FFFF).to_bytes(4, "little")


def upper(dst, number):
    """A constant with zeros in its lower half."""
    return bytes([7, dst, 32, 0]) + (number & 0xFFFF_FFFF).to_bytes(4, "little")


def from_memory(dst, offset):
    """32 bits of the stack."""
    return bytes([4, dst, 0, 2, offset, 1, 0, 0])


def atomic(op, register, wide, offset):
    return bytes([8 | 6, register, 0x40 if wide else 0, 0, offset, 1, op, 0])


def write(name, numbers, body):
    values = b"".join(next(numbers).to_bytes(8, "little") for _ in range(REGISTERS))
    (FOLDER / name).write_bytes(bytes([0]) + values + b"".join(body[:MOST]))


def main():
    numbers = random(20261126)
    all_of = []
    for op in range(OPERATIONS):
        for constant in (kind << 5 | power for kind in KINDS for power in POWERS):
            for wide in (False, True):
                dst = 1 + len(all_of) % 8
                all_of.append([load(dst, next(numbers)), operation(op, dst, wide, constant),
                               operation(XOR, 0, True, register=dst)])
    each = MOST // 3
    for number, first in enumerate(range(0, len(all_of), each)):
        write(f"arithmetic-{number}", numbers, [step for steps in all_of[first:first + each] for step in steps])
    body = []
    for op in range(ATOMICS):
        for wide in (False, True):
            for is_equal in (False, True):
                offset, register = len(body) % 7 * 8, 1 + len(body) % 6
                if is_equal:
                    # Of the 32 bits that are compared.
                    body += [from_memory(0, offset), upper(register, next(numbers)),
                             operation(OR, 0, True, register=register)]
                else:
                    body += [load(0, next(numbers))]
                body += [load(register, next(numbers)), atomic(op, register, wide, offset)]
                body += [operation(XOR, 7, True, register=0), operation(XOR, 8, True, register=register)]
    for number, first in enumerate(range(0, len(body), MOST)):
        write(f"atomic-{number}", numbers, body[first:first + MOST])


main()
