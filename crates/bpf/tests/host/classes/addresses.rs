//! Addresses, and what helpers give and call. Map 0 is an array of 4 values of 16 bytes, map 2 a ring buffer, map 4 an
//! array of programs; map 5 is read-only.

use super::Class;

pub(super) const ADDRESSES: &[Class] = &[
    Class {
        name: "an address that counts as never 0, moved to where it can be 0",
        refused: &[
            // Who knows the context's address can make it 0.
            ("r1 += -0x100000\nr0 = 0\nif r1 == 0 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit", "StackUnset"),
            (
                "r3 = *(u32 *)(r1 + 0)\nr3 >>= 4\nr1 += r3\nr0 = 0\nif r1 != 0 goto ok\nr0 = *(u64 *)(r10 - 8)\n\
                 ok: exit",
                "StackUnset",
            ),
            ("r3 = 0\nr1 += 17\nr0 = 0\nif r1 == r3 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit", "StackUnset"),
        ],
        harmless: &[
            "r1 += 16\nr0 = 0\nif r1 == 0 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit",
            "r1 += -9\nr0 = 0\nif r1 == 0 goto null\nr0 = 1\nnull: exit",
            "r3 = map[idx:0] ll\nr0 = 0\nif r3 == 0 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit",
        ],
    },
    Class {
        name: "arithmetic on what may be 0, and copies of it",
        refused: &[
            (
                "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nr6 = r0\nr6 += 8\n\
                 if r0 == 0 goto out\n\
                 r0 = *(u64 *)(r6 + 0)\nout: r0 = 0\nexit",
                "MaybeNull",
            ),
            (
                "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nr6 = r0\n\
                 *(u32 *)(r10 - 4) = 9\n\
                 r1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr0 = *(u64 *)(r6 + 0)\n\
                 out: r0 = 0\nexit",
                "MaybeNull",
            ),
            ("*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nw3 = w0\nr0 = 0\nexit", "Address"),
        ],
        harmless: &["*(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\n*(u64 *)(r10 - 16) = r0\n\
             if r0 == 0 goto out\nr6 = *(u64 *)(r10 - 16)\nr6 += 8\nr0 = *(u64 *)(r6 + 0)\nexit\nout: r0 = 1\nexit"],
    },
    Class {
        name: "an address in a value, moved by a number that is narrowed behind that",
        refused: &[
            (
                "r6 = *(u64 *)(r1 + 0)\nr7 = map[idx:0][0]+0 ll\nr6 &= 31\nr7 += r6\nr0 = 0\nif r6 > 15 goto out\n\
                 r0 = *(u8 *)(r7 + 0)\nout: exit",
                "Outside",
            ),
            (
                "r6 = *(u64 *)(r1 + 0)\nr7 = map[idx:0][0]+0 ll\nr6 &= 15\nr7 += r6\nr7 -= 1\nr0 = *(u8 *)(r7 + 0)\n\
                 exit",
                "Outside",
            ),
            ("r7 = map[idx:0][0]+0 ll\nr7 *= 2\nr0 = 0\nexit", "Address"),
            ("r7 = map[idx:0] ll\nr7 += 8\nr0 = 0\nexit", "Address"),
            ("r7 = map[idx:0][0]+0 ll\nr7 -= r1\nr0 = 0\nexit", "Address"),
        ],
        harmless: &[
            "r6 = *(u64 *)(r1 + 0)\nr7 = map[idx:0][0]+0 ll\nr0 = 0\nif r6 > 15 goto out\nr7 += r6\n\
             r0 = *(u8 *)(r7 + 0)\n\
             out: exit",
            "r6 = *(u64 *)(r1 + 0)\nr6 &= 15\nr7 = map[idx:0][0]+15 ll\nr7 -= r6\nr0 = *(u8 *)(r7 + 0)\nexit",
        ],
    },
    Class {
        name: "memory that must not be written, given to a helper that writes",
        refused: &[
            (
                "*(u32 *)(r10 - 8) = 55\nr1 = r10\nr1 += -8\nr2 = 4\nr3 = 0\nr4 = map[idx:5][0]+0 ll\ncall 105\nexit",
                "ReadOnlyMap",
            ),
            ("r2 = 1\nr3 = map[idx:5][0]+0 ll\nr2 = xchg_64(r3 + 0, r2)\nr0 = 0\nexit", "ReadOnlyMap"),
        ],
        harmless: &[
            "*(u32 *)(r10 - 8) = 55\nr1 = r10\nr1 += -8\nr2 = 4\nr3 = 0\nr4 = map[idx:0][0]+8 ll\ncall 105\nexit",
        ],
    },
    Class {
        name: "lengths for helpers: negative, of more than there is, of bytes that nobody wrote",
        refused: &[
            (
                "r2 = *(s8 *)(r1 + 0)\nr1 = map[idx:0][0]+0 ll\nif r2 s> 16 goto out\nr3 = 0\nr4 = r10\nr4 += -8\n\
                 call 105\n\
                 out: r0 = 0\nexit",
                "Size",
            ),
            (
                "r2 = *(u8 *)(r1 + 0)\nr2 &= 31\nr1 = map[idx:0][0]+0 ll\nr3 = 0\nr4 = r10\nr4 += -8\ncall 105\nexit",
                "Outside",
            ),
            (
                "r2 = *(u8 *)(r1 + 0)\nr2 &= 7\nr1 = r10\nr1 += -16\nr3 = 0\nr4 = r10\nr4 += -8\ncall 105\nexit",
                "StackUnset",
            ),
            ("r3 = 0x100000005 ll\ncallx r3\nr0 = *(u64 *)(r10 - 8)\nexit", "StackUnset"),
        ],
        harmless: &["r2 = *(u8 *)(r1 + 0)\nr2 &= 15\nr1 = map[idx:0][0]+0 ll\nr3 = 0\nr4 = r10\nr4 += -8\ncall 105\n\
             r0 = *(u64 *)(r10 - 8)\nexit"],
    },
    Class {
        name: "a function that a helper calls again and again changes what its caller relies on",
        refused: &[
            // It adds to an index of its caller in each round.
            (
                "r6 = r1\n*(u64 *)(r10 - 8) = 0\nr1 = 20\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                 r7 = *(u64 *)(r10 - 8)\nr6 += r7\nr0 = *(u8 *)(r6 + 0)\nexit\n\
                 f: r3 = *(u64 *)(r2 + 0)\nr3 += 1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nexit",
                "Far",
            ),
            // What it leaves is a number where an address was.
            (
                "*(u64 *)(r10 - 8) = r1\nr1 = 2\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                 r7 = *(u64 *)(r10 - 8)\nr0 = *(u8 *)(r7 + 0)\nexit\nf: *(u64 *)(r2 + 0) = 5\nr0 = 0\nexit",
                "NoAddress",
            ),
            // It may not be called at all.
            (
                "r1 = *(u64 *)(r1 + 0)\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
                 r0 = *(u64 *)(r10 - 8)\nexit\n\
                 f: *(u64 *)(r2 + 0) = 5\nr0 = 0\nexit",
                "StackUnset",
            ),
            // In the second round its own argument is what the first has left.
            (
                "*(u64 *)(r10 - 8) = r1\nr1 = 2\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\nr0 = 0\nexit\n\
                 f: r3 = *(u64 *)(r2 + 0)\nr4 = *(u64 *)(r3 + 0)\n*(u64 *)(r2 + 0) = 5\nr0 = 0\nexit",
                "StackUnset",
            ),
            // The number of the round, and the number of rounds, are any.
            (
                "r6 = r1\nr1 = 3\nr2 = func[f] ll\nr3 = 0\nr4 = 0\ncall 181\nr6 += r0\nr0 = *(u8 *)(r6 + 0)\nexit\n\
                 f: r0 = 0\nexit",
                "Far",
            ),
        ],
        harmless: &["r6 = r1\n*(u64 *)(r10 - 8) = 0\nr1 = 20\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\n\
             r7 = *(u64 *)(r10 - 8)\nr7 &= 15\nr6 += r7\nr0 = *(u8 *)(r6 + 0)\nr0 += r7\nexit\n\
             f: r3 = *(u64 *)(r2 + 0)\nr3 += 1\n*(u64 *)(r2 + 0) = r3\nr0 = 0\nexit"],
    },
    Class {
        name: "an address of what the round of a function got, kept for the next round",
        refused: &[(
            "*(u64 *)(r10 - 8) = r10\nr1 = map[idx:0] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\n\
             r0 = 0\nexit\n\
             f: *(u64 *)(r4 + 0) = r10\nr0 = 0\nexit",
            "StoredAddress",
        )],
        harmless: &[
            "*(u64 *)(r10 - 8) = 0\nr1 = map[idx:0] ll\nr2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 164\n\
             r3 = *(u64 *)(r10 - 8)\nif r3 == 0 goto none\nr0 = 1\nexit\nnone: r0 = 2\nexit\n\
             f: r3 = *(u64 *)(r3 + 0)\n*(u64 *)(r4 + 0) = r3\nr0 = 0\nexit",
        ],
    },
    Class {
        name: "records: given back twice, used behind that, kept across an end, a tail call or a round",
        refused: &[
            (
                "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\nr1 = r0\ncall local f\n\
                 *(u64 *)(r6 + 0) = 1\nout: r0 = 0\nexit\nf: r2 = 0\ncall 132\nr0 = 0\nexit",
                "Unset",
            ),
            (
                "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\nr1 = r0\nr2 = 0\n\
                 call 132\n\
                 *(u64 *)(r6 + 0) = 1\nout: r0 = 0\nexit",
                "Unset",
            ),
            (
                "r6 = r1\nr1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nr1 = r6\nr2 = map[idx:4] ll\nr3 = 0\n\
                 call 12\nr0 = 0\n\
                 exit",
                "TailCall",
            ),
            ("call local f\nexit\nf: r2 = map[idx:4] ll\nr3 = 0\ncall 12\nr0 = 0\nexit", "TailCall"),
            (
                "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr1 = r0\ncall local f\nr0 = 0\n\
                 exit\n\
                 out: r0 = 0\nexit\nf: if r1 == 0 goto on\nr0 = 1\non: exit",
                "Unreleased",
            ),
            (
                "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\n*(u64 *)(r10 - 8) = r0\nr1 = 2\n\
                 r2 = func[f] ll\nr3 = r10\nr3 += -8\nr4 = 0\ncall 181\nout: r0 = 0\nexit\n\
                 f: r1 = *(u64 *)(r2 + 0)\nr2 = 0\ncall 133\nr0 = 0\nexit",
                "Unreleased",
            ),
        ],
        harmless: &[
            "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\n*(u64 *)(r0 + 0) = 9\nr1 = r0\n\
             call local f\n\
             out: r0 = 0\nexit\nf: r2 = 0\ncall 132\nr0 = 0\nexit",
        ],
    },
    Class {
        name: "the memory of a dynptr whose record was given back, and a dynptr that was overwritten",
        refused: &[
            (
                "r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\nr4 = r10\nr4 += -16\ncall 198\nr1 = r10\nr1 += -16\nr2 = 0\n\
                 r3 = 8\n\
                 call 203\nr6 = r0\nr1 = r10\nr1 += -16\nr2 = 0\ncall 199\nif r6 == 0 goto out\n\
                 r0 = *(u64 *)(r6 + 0)\nexit\n\
                 out: r0 = 0\nexit",
                "Unset",
            ),
            (
                "r1 = map[idx:0][0]+0 ll\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall 197\n*(u8 *)(r10 - 9) = 1\n\
                 r1 = r10\n\
                 r1 += -16\nr2 = 0\nr3 = 8\ncall 203\nr0 = 0\nexit",
                "NoDynptr",
            ),
            (
                "r1 = map[idx:0][0]+0 ll\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall 197\nr1 = r10\nr1 += -8\n\
                 r2 = 0\nr3 = 8\n\
                 call 203\nr0 = 0\nexit",
                "Stack",
            ),
            (
                "r1 = map[idx:0][0]+0 ll\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall 197\nr0 = *(u64 *)(r10 - 16)\n\
                 exit",
                "PartOfAddress",
            ),
        ],
        harmless: &[
            "r1 = map[idx:0][0]+0 ll\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -16\ncall 197\nr1 = r10\nr1 += -16\nr2 = 8\n\
             r3 = 8\n\
             call 203\nif r0 == 0 goto out\n*(u64 *)(r10 - 8) = 1\nr0 = *(u64 *)(r0 + 0)\nexit\nout: r0 = 1\nexit",
        ],
    },
    Class {
        name: "an address that leaves: as a result, by the difference, in memory of the host",
        refused: &[
            ("r0 = r1\nexit", "ReturnedAddress"),
            ("*(u64 *)(r1 + 0) = r1\nr0 = 0\nexit", "StoredAddress"),
            ("r3 = map[idx:0][0]+0 ll\nlock *(u64 *)(r3 + 0) += r1\nr0 = 0\nexit", "Address"),
            ("store_release((u64 *)(r1 + 0), r10)\nr0 = 0\nexit", "StoredAddress"),
            ("r0 = 0\nif r1 > 5 goto out\nr0 = 1\nout: exit", "Address"),
            ("r1 = -r1\nr0 = 0\nexit", "Address"),
            ("r0 = (s32)r1\nexit", "Address"),
            ("r1 = be64 r1\nr0 = r1\nexit", "Address"),
        ],
        harmless: &[
            "r0 = r1\nr0 += 8\nr0 -= r1\nexit",
            "r3 = r1\nr3 += 8\nr0 = 0\nif r3 > r1 goto out\nr0 = 1\nout: exit",
        ],
    },
];
