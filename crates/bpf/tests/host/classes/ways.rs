//! The stack, and where ways meet.

use super::Class;

pub(super) const WAYS: &[Class] = &[
    Class {
        name: "an address on the stack of which a part is overwritten, read or extended",
        refused: &[
            ("*(u64 *)(r10 - 8) = r1\n*(u8 *)(r10 - 8) = 0\nr2 = *(u64 *)(r10 - 8)\nr0 = 0\nexit", "StackUnset"),
            ("*(u64 *)(r10 - 8) = r1\nr0 = *(s32 *)(r10 - 8)\nexit", "PartOfAddress"),
            ("*(u64 *)(r10 - 8) = r1\nr0 = *(u64 *)(r10 - 12)\nexit", "StackUnset"),
            ("*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 12) = 0\nr0 = *(u32 *)(r10 - 4)\nexit", "StackUnset"),
            ("*(u32 *)(r10 - 8) = r1\nr0 = 0\nexit", "StoredAddress"),
            ("*(u64 *)(r10 - 12) = r1\nr0 = 0\nexit", "StoredAddress"),
        ],
        harmless: &[
            "*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 16) = 1\nr1 = *(u64 *)(r10 - 8)\nr0 = *(u64 *)(r1 + 8)\nexit",
        ],
    },
    Class {
        name: "a number on the stack, stored or loaded in part",
        refused: &[
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\n*(u32 *)(r10 - 8) = r3\nr4 = *(u32 *)(r10 - 8)\nif r4 > 7 goto out\n\
                 r1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r3 = 0x100000003 ll\n*(u64 *)(r10 - 8) = r3\n*(u16 *)(r10 - 4) = 99\nr4 = *(u64 *)(r10 - 8)\n\
                 r4 >>= 32\n\
                 r1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
        ],
        harmless: &[
            "r3 = *(u64 *)(r1 + 0)\n*(u32 *)(r10 - 8) = r3\n*(u32 *)(r10 - 4) = 0\nr0 = *(u64 *)(r10 - 8)\nexit",
            "r3 = 0x100000003 ll\n*(u64 *)(r10 - 8) = r3\nr4 = *(u32 *)(r10 - 4)\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit",
        ],
    },
    Class {
        name: "an atomic operation on the stack: what it leaves there, and what it fetches",
        refused: &[
            (
                "*(u64 *)(r10 - 8) = 0\nr3 = *(u64 *)(r1 + 0)\nr3 = xchg_64(r10 - 8, r3)\nr4 = *(u64 *)(r10 - 8)\n\
                 r1 += r4\n\
                 r0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
            (
                "*(u64 *)(r10 - 8) = 0\nr3 = 99\nlock *(u32 *)(r10 - 4) += r3\nr4 = *(u64 *)(r10 - 8)\nr4 >>= 32\n\
                 r1 += r4\n\
                 r0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
            ("*(u64 *)(r10 - 8) = r1\nr3 = 0\nr3 = xchg_64(r10 - 8, r3)\nr0 = r3\nexit", "PartOfAddress"),
            ("*(u64 *)(r10 - 8) = 0\nr3 = r1\nr3 = xchg_64(r10 - 8, r3)\nr0 = 0\nexit", "Address"),
            ("*(u64 *)(r10 - 8) = 0\nr0 = r1\nr3 = 1\nr0 = cmpxchg_64(r10 - 8, r0, r3)\nr0 = 0\nexit", "Address"),
            ("r0 = r1\nr3 = 1\nr0 = cmpxchg32_32(r1 + 0, w0, w3)\nexit", "Address"),
        ],
        harmless: &[
            "r3 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r3\nr4 = -1\nw4 = xchg32_32(r10 - 8, w4)\n\
             r0 = *(u64 *)(r10 - 8)\n\
             r0 ^= r4\nexit",
            "r3 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r3\nr0 = *(u64 *)(r1 + 8)\nr4 = 5\n\
             w0 = cmpxchg32_32(r10 - 8, w0, w4)\nr3 = *(u64 *)(r10 - 8)\nr0 += r3\nexit",
        ],
    },
    Class {
        name: "ways that meet with numbers on which something depends, through copies, calls and the stack",
        refused: &[
            (
                "r6 = *(u64 *)(r1 + 0)\nr7 = 0\nif r6 == 1 goto a\nif r6 == 2 goto b\nr0 = 0\nexit\n\
                 a: r7 = 8\ngoto meet\nb: r7 = 16\nmeet: r8 = r7\nr8 *= 1\nr1 += r8\nr0 = *(u8 *)(r1 + 0)\nexit",
                "Context",
            ),
            (
                "r6 = r1\nr7 = *(u64 *)(r1 + 0)\nr8 = 0\nif r7 == 1 goto a\nr8 = 16\na: r1 = r8\ncall local f\n\
                 r6 += r0\n\
                 r0 = *(u8 *)(r6 + 0)\nexit\nf: r0 = r1\nexit",
                "Context",
            ),
            // The branch that decides is passed on one way, and pruned on the other.
            (
                "r6 = *(u64 *)(r1 + 0)\nr7 = 99\nif r6 == 0 goto on\nr7 = 0\non: r8 = 0\nif r7 > 50 goto big\nr8 = 1\n\
                 big: if r8 == 1 goto small\nr1 += r7\nr0 = *(u8 *)(r1 + 0)\nexit\nsmall: r0 = 0\nexit",
                "Context",
            ),
        ],
        harmless: &["r6 = *(u64 *)(r1 + 0)\nr7 = 0\nif r6 == 1 goto a\nif r6 == 2 goto b\nr0 = 0\nexit\n\
             a: r7 = 8\ngoto meet\nb: r7 = 15\nmeet: r8 = r7\nr8 *= 1\nr1 += r8\nr0 = *(u8 *)(r1 + 0)\nexit"],
    },
    Class {
        name: "a `may_goto` where the stack is used to its end, in as many functions as there can be",
        refused: &[(
            "r6 = 0\nagain: may_goto out\nr6 += 1\nif r6 > 16 goto out\nr3 = r1\nr3 += r6\nr0 = *(u8 *)(r3 + 0)\n\
             goto again\n\
             out: r0 = 0\nexit",
            "Context",
        )],
        harmless: &[
            "*(u64 *)(r10 - 512) = 1\n*(u64 *)(r10 - 8) = 2\ncall local f\nr3 = *(u64 *)(r10 - 512)\nr0 += r3\n\
             r3 = *(u64 *)(r10 - 8)\nr0 += r3\nexit\n\
             f: r0 = 0\n*(u64 *)(r10 - 512) = 3\n*(u64 *)(r10 - 8) = 4\nagain: may_goto out\nr0 += 1\ngoto again\n\
             out: r3 = *(u64 *)(r10 - 512)\nr0 += r3\nr3 = *(u64 *)(r10 - 8)\nr0 += r3\nexit",
        ],
    },
    Class {
        name: "registers and stacks of functions",
        refused: &[
            ("r6 = 1\ncall local f\nexit\nf: r0 = r6\nexit", "Unset"),
            ("call local f\nr0 = *(u64 *)(r0 + 0)\nexit\nf: r0 = r10\nexit", "ReturnedAddress"),
            (
                "r1 = r10\nr1 += -8\ncall local f\nr0 = 0\nexit\nf: *(u64 *)(r1 + 0) = r10\nr0 = 0\nexit",
                "StoredAddress",
            ),
        ],
        harmless: &[
            "r6 = r1\nr7 = 5\nr8 = 6\nr9 = 7\ncall local f\nr0 += r7\nr0 += r8\nr0 += r9\nr3 = *(u64 *)(r6 + 0)\n\
             r0 += r3\n\
             exit\nf: r6 = 0\nr7 = 0\nr8 = 0\nr9 = 1\nr0 = r9\nexit",
        ],
    },
    Class {
        name: "places on the stack that are known when the program runs",
        refused: &[
            // What was not written, or is an address, wherever it is among them.
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r10 - 8) = 1\nr0 = *(u64 *)(r4 - 8)\nexit",
                "StackUnset",
            ),
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = r1\n\
                 r0 = *(u64 *)(r4 - 8)\nexit",
                "PartOfAddress",
            ),
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r10 - 16) = 1\nr0 = *(u64 *)(r4 - 8)\n\
                 exit",
                "StackUnset",
            ),
            // Only one of them was written.
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r4 - 8) = 1\nr0 = *(u64 *)(r10 - 8)\nexit",
                "StackUnset",
            ),
            // Any of them may have been.
            (
                "*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = 2\nr3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n\
                 *(u64 *)(r4 - 8) = 99\nr3 = *(u64 *)(r10 - 16)\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
            (
                "*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 16) = 2\nr3 = *(u8 *)(r1 + 0)\nr3 &= 15\nr4 = r10\nr4 -= r3\n\
                 *(u8 *)(r4 - 1) = 99\nr1 = *(u64 *)(r10 - 8)\nr0 = *(u8 *)(r1 + 0)\nexit",
                "StackUnset",
            ),
            ("r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r4 - 8) = r1\nr0 = 0\nexit", "VariableStack"),
            // At either end.
            ("r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr3 += r10\n*(u64 *)(r3 - 8) = 1\nr0 = 0\nexit", "Stack"),
            ("r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n*(u64 *)(r4 - 512) = 1\nr0 = 0\nexit", "Stack"),
            ("r3 = *(u8 *)(r1 + 0)\nr3 += r10\nr0 = *(u8 *)(r3 - 64)\nexit", "Stack"),
            // Given to helpers.
            (
                "*(u64 *)(r10 - 8) = 0\nr3 = *(u8 *)(r1 + 0)\nr3 &= 4\nr2 = r10\nr2 += -12\nr2 += r3\n\
                 r1 = map[idx:0] ll\n\
                 call 1\nr0 = 0\nexit",
                "StackUnset",
            ),
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 += -16\nr4 += r3\nr1 = map[idx:0][0]+0 ll\nr2 = 8\n\
                 r3 = 0\n\
                 call 105\nr0 = *(u64 *)(r10 - 8)\nexit",
                "StackUnset",
            ),
            (
                "r3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 += -32\nr4 += r3\nr1 = map[idx:0][0]+0 ll\nr2 = 16\n\
                 r3 = 0\n\
                 call 197\nr0 = 0\nexit",
                "VariableStack",
            ),
        ],
        harmless: &[
            "*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = 2\nr3 = *(u8 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n\
             *(u64 *)(r4 - 8) = 99\nr0 = *(u64 *)(r10 - 16)\nr3 = *(u64 *)(r10 - 8)\nr0 += r3\nr3 = *(u64 *)(r4 - 8)\n\
             r0 += r3\nexit",
            "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\nr3 = *(u64 *)(r1 + 0)\nr3 &= 15\nr3 += r10\n\
             *(u8 *)(r3 - 16) = 5\nr0 = *(u64 *)(r10 - 8)\nr3 = *(u64 *)(r10 - 16)\nr0 += r3\nexit",
            "*(u64 *)(r10 - 8) = 7\n*(u64 *)(r10 - 16) = 7\nr3 = *(u64 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 -= r3\n\
             r3 = 3\n\
             lock *(u64 *)(r4 - 8) += r3\nr0 = *(u64 *)(r10 - 8)\nr0 *= 3\nr3 = *(u64 *)(r10 - 16)\nr0 += r3\nexit",
            "*(u64 *)(r10 - 8) = 3\n*(u64 *)(r10 - 16) = 2\nr3 = *(u8 *)(r1 + 0)\nr3 &= 12\nr2 = r10\nr2 += -16\n\
             r2 += r3\n\
             r1 = map[idx:0] ll\ncall 1\nif r0 == 0 goto out\nr0 = *(u64 *)(r0 + 0)\nexit\nout: r0 = 77\nexit",
            "*(u64 *)(r10 - 8) = 3\n*(u64 *)(r10 - 16) = 2\nr3 = *(u64 *)(r1 + 0)\nr3 &= 8\nr4 = r10\nr4 += -16\n\
             r4 += r3\n\
             r1 = map[idx:0][0]+0 ll\nr2 = 8\nr3 = 0\ncall 105\nr0 = *(u64 *)(r10 - 8)\nexit",
        ],
    },
    Class {
        name: "functions that return addresses",
        refused: &[
            ("call local f\nr0 = *(u64 *)(r0 + 0)\nexit\nf: r0 = r10\nr0 += -8\nexit", "ReturnedAddress"),
            ("call local f\nexit\nf: r0 = map[idx:0][0]+0 ll\nexit", "ReturnedAddress"),
            // What may be 0 may still be 0, and other results are others.
            (
                "call local f\nr0 = *(u64 *)(r0 + 0)\nexit\n\
                 f: *(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nexit",
                "MaybeNull",
            ),
            (
                "call local f\nr6 = r0\ncall local f\nif r0 == 0 goto out\nr0 = *(u64 *)(r6 + 0)\nexit\n\
                 out: r0 = 0\nexit\n\
                 f: *(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nexit",
                "MaybeNull",
            ),
            // A number on one way.
            (
                "r2 = *(u8 *)(r1 + 0)\ncall local f\nr0 = *(u64 *)(r0 + 0)\nexit\n\
                 f: r0 = 0\nif r2 == 0 goto on\nr0 = r1\non: exit",
                "NoAddress",
            ),
            // What a helper calls returns a number.
            (
                "r1 = 2\nr2 = func[f] ll\nr3 = r1\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\n\
                 f: r0 = map[idx:0][0]+0 ll\nexit",
                "ReturnedAddress",
            ),
            // A record is given back where it came from.
            (
                "call local f\nr6 = r0\nif r0 == 0 goto out\nr1 = r0\nr2 = 0\ncall 132\n*(u64 *)(r6 + 0) = 1\n\
                 out: r0 = 0\nexit\n\
                 f: r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nexit",
                "Unset",
            ),
        ],
        harmless: &[
            "call local f\nif r0 == 0 goto out\nr0 = *(u64 *)(r0 + 0)\nexit\nout: r0 = 9\nexit\n\
             f: *(u32 *)(r10 - 4) = 1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nexit",
            "r6 = *(u64 *)(r1 + 0)\nr1 = r6\nr1 &= 7\ncall local f\nr7 = r0\nr1 = r6\nr1 >>= 3\nr1 &= 7\ncall local f\n\
             if r7 == 0 goto out\nif r0 == 0 goto out\n*(u64 *)(r7 + 0) = 3\nr0 = *(u64 *)(r0 + 0)\nexit\n\
             out: r0 = 9\nexit\n\
             f: *(u32 *)(r10 - 4) = r1\nr1 = map[idx:0] ll\nr2 = r10\nr2 += -4\ncall 1\nexit",
            "*(u64 *)(r10 - 8) = 4\n*(u64 *)(r10 - 16) = 5\nr2 = *(u8 *)(r1 + 0)\nr1 = r10\ncall local f\n\
             r0 = *(u64 *)(r0 + 0)\nexit\nf: r0 = r1\nr0 += -8\nif r2 > 5 goto on\nr0 += -8\non: exit",
            "call local f\nr1 = r0\nr0 = 0\nif r1 == 0 goto out\n*(u64 *)(r1 + 0) = 1\nr2 = 0\ncall 132\nr0 = 0\n\
             out: exit\n\
             f: r1 = map[idx:2] ll\nr2 = 8\nr3 = 0\ncall 131\nexit",
        ],
    },
];
