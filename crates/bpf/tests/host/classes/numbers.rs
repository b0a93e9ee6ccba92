//! Numbers: of 32 and of 64 bits, of either sign, as bits and as ranges.

use super::Class;

pub(super) const NUMBERS: &[Class] = &[
    Class {
        name: "a comparison of 32 bits bounds 64",
        refused: &[(
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
            "Far",
        )],
        harmless: &["r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nw3 = w3\nr0 = 1\nout: exit"],
    },
    Class {
        name: "limits of comparisons of 32 bits, with and without sign",
        refused: &[
            (
                "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nif w3 > 16 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Context",
            ),
            ("r0 = 0\nr3 = *(u32 *)(r1 + 0)\nif w3 s> 7 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit", "Far"),
            (
                "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nif w3 s<= 15 goto in\nexit\nin: r1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif r3 s<= 15 goto in\nexit\nin: r1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
                "Far",
            ),
        ],
        harmless: &[
            "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nif w3 > 15 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif r3 s<= 15 goto in\nexit\nin: if r3 s< 0 goto out\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s>= 0 goto out\nr0 = r3\nout: exit",
        ],
    },
    Class {
        name: "a constant of 32 bits is extended with zeros where the program compares 64",
        refused: &[("w3 = -1\nr0 = 0\nif r3 != -1 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit", "StackUnset")],
        harmless: &["w3 = -1\nr0 = 0\nif r3 == -1 goto bad\nexit\nbad: r0 = *(u64 *)(r10 - 8)\nexit"],
    },
    Class {
        name: "a move of 32 bits keeps the bounds, or the sign, of 64",
        refused: &[(
            "r3 = *(u8 *)(r1 + 0)\nr4 = 0\nr4 -= r3\nw5 = w4\nif r5 s< 1 goto on\nr1 += r5\n\
             on: r0 = *(u8 *)(r1 + 0)\nexit",
            "Far",
        )],
        harmless: &["r3 = *(s8 *)(r1 + 0)\nw4 = w3\nr0 = r4\nr0 -= r3\nexit"],
    },
    Class {
        name: "sums of 32 bits that wrap",
        refused: &[("r3 = *(u32 *)(r1 + 0)\nw3 |= -16\nw3 += 8\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Far")],
        harmless: &[
            "r3 = *(u32 *)(r1 + 0)\nw3 &= 7\nw3 += -8\nw3 += 8\nr0 = r3\nexit",
            "r3 = *(u64 *)(r1 + 0)\nr4 = *(u64 *)(r1 + 8)\nw3 += w4\nw4 -= w3\nr0 = r3\nr0 ^= r4\nexit",
        ],
    },
    Class {
        name: "`and`, `or` and `xor` of 32 bits whose upper half is known and whose lower is not",
        refused: &[(
            "r3 = *(u64 *)(r1 + 0)\nr4 = 0xffffffff00000000 ll\nr3 |= r4\nw3 ^= 8\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\n\
             exit",
            "Far",
        )],
        harmless: &[
            "r3 = *(u64 *)(r1 + 0)\nr4 = 0x100000000 ll\nr3 |= r4\nw4 = 7\nw3 &= w4\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nexit",
            "r3 = *(u64 *)(r1 + 0)\nr4 = 0xffffffff00000001 ll\nr3 &= r4\nw4 = w3\nw4 ^= 1\nr1 += r4\n\
             r0 = *(u8 *)(r1 + 0)\nexit",
        ],
    },
    Class {
        name: "shifts of 32 bits of numbers with an upper half, and by as many bits as there are, or more",
        refused: &[
            ("r3 = *(u64 *)(r1 + 0)\nw3 s>>= 28\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Far"),
            ("r3 = *(u8 *)(r1 + 8)\nr4 = 8\nr4 <<= r3\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit", "Far"),
            ("r3 = *(u64 *)(r1 + 8)\nr4 = 3\nw4 <<= w3\nr4 >>= 28\nr1 += r4\nr0 = *(u64 *)(r1 + 0)\nexit", "Context"),
        ],
        harmless: &[
            "r3 = *(u64 *)(r1 + 0)\nw3 >>= 28\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
            "r3 = *(u64 *)(r1 + 8)\nr4 = 1\nw4 <<= w3\nr4 >>= 28\nr1 += r4\nr0 = *(u64 *)(r1 + 0)\nexit",
            "r3 = *(u64 *)(r1 + 0)\nr4 = *(u64 *)(r1 + 8)\nw3 <<= w4\nr5 = r3\nr5 s>>= r4\nw5 >>= w4\nr0 = r5\nexit",
        ],
    },
    Class {
        name: "division and remainder by 0, and of 32 bits by a number whose lower half is 0",
        refused: &[(
            "r3 = *(u64 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 8)\nr4 &= 7\nw3 %= w4\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
            "Far",
        )],
        harmless: &[
            "r3 = *(u64 *)(r1 + 0)\nr4 = 0x100000000 ll\nr0 = r3\nw0 %= w4\nw3 /= w4\nr0 += r3\nexit",
            "r3 = *(u64 *)(r1 + 0)\nr4 = *(u64 *)(r1 + 8)\nr0 = r3\nr0 s/= r4\nr5 = r3\nw5 s%= w4\nr0 ^= r5\nr3 %= r4\n\
             r0 += r3\nexit",
            "r3 = *(u32 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 8)\nr4 |= 8\nr4 &= 15\nr3 %= r4\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nexit",
        ],
    },
    Class {
        name: "what is known of numbers that were extended with their sign",
        refused: &[
            ("r3 = *(u8 *)(r1 + 0)\nr3 = (s8)r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Context"),
            ("r3 = *(u8 *)(r1 + 0)\nw3 = (s8)w3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Far"),
            (
                "r3 = *(s8 *)(r1 + 0)\nif r3 s> 7 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit\nout: r0 = 0\nexit",
                "Context",
            ),
        ],
        harmless: &[
            "r3 = *(u8 *)(r1 + 0)\nr3 &= 7\nr3 = (s8)r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
            "r3 = *(s16 *)(r1 + 0)\nr0 = 0\nif r3 > 15 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
            "r3 = *(u64 *)(r1 + 8)\nr4 = (s32)r3\nw5 = (s16)w3\nr0 = r4\nr0 ^= r5\nexit",
        ],
    },
    Class {
        name: "bounds of a number whose bytes were swapped",
        refused: &[
            ("r3 = *(u8 *)(r1 + 0)\nr3 = be16 r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Context"),
            ("r3 = *(u8 *)(r1 + 0)\nr3 &= 7\nr3 = bswap64 r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Far"),
        ],
        harmless: &["r3 = *(u64 *)(r1 + 0)\nr0 = r3\nr0 = bswap32 r0\nr3 = le16 r3\nr0 += r3\nexit"],
    },
    Class {
        name: "products, negations and quotients at the limits",
        refused: &[
            ("r3 = *(u32 *)(r1 + 0)\nr3 *= r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Far"),
            ("r3 = *(u8 *)(r1 + 0)\nr3 &= 7\nr3 = -r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Context"),
            ("r3 = *(u8 *)(r1 + 0)\nr3 s/= -1\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit", "Context"),
        ],
        harmless: &[
            "r3 = *(u8 *)(r1 + 0)\nr3 &= 7\nr3 = -r3\nr1 += 8\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
            "r3 = *(u64 *)(r1 + 0)\nr4 = -1\nr3 s/= r4\nr5 = *(u64 *)(r1 + 0)\nw5 s/= -1\nr0 = r3\nr0 ^= r5\nexit",
        ],
    },
    Class {
        name: "tests of bits by a constant with a sign, and a register compared with itself",
        refused: &[(
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 & -16 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
            "Far",
        )],
        harmless: &[
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif r3 & -16 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
            "r3 = *(u64 *)(r1 + 0)\nr0 = 0\nif r3 s>= r3 goto on\nr0 = 1\non: if w3 == w3 goto out\nr0 = 2\nout: exit",
        ],
    },
    Class {
        name: "signed comparisons of 32 bits of numbers with any upper half, and what moves make of them",
        refused: &[
            // Only one end is bounded.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s> 15 goto out\nw3 = w3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\n\
                 out: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s> 7 goto out\nr3 = (s32)r3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\n\
                 out: exit",
                "Far",
            ),
            // The upper half is still any.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s> 7 goto out\nif w3 s< 0 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            // What 64 bits do to it behind the comparison.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nr3 >>= 1\nw3 = w3\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nr3 *= -1\nw3 = w3\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nr3 /= 2\nw3 = w3\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            // It begins anew at 0, and at the least number with sign.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto out\nr3 -= 1\nw3 = w3\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nif w3 s< 0 goto out\nw3 += 1\nif w3 s> 8 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
        ],
        harmless: &[
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s> 15 goto out\nif w3 s< 0 goto out\nw3 = w3\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s< 0 goto out\nif w3 s> 15 goto out\nr3 = (s32)r3\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 s< -8 goto out\nif w3 s> 7 goto out\nw3 += 8\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nif w3 > 14 goto out\nr3 += 1\nr3 <<= 32\nr3 >>= 32\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nw3 -= 1\nif w3 > 14 goto out\nw3 += 1\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
        ],
    },
    Class {
        name: "copies of a number, linked when one of them is compared",
        refused: &[
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = r3\nr4 += 1\nif r4 > 8 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Context",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nw4 = w3\nif r4 > 7 goto out\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r6 = r1\nr7 = *(u64 *)(r1 + 0)\nr1 = r7\ncall local f\nr6 += r7\nr0 = *(u8 *)(r6 + 0)\nexit\n\
                 f: r0 = 0\nif r1 < 8 goto in\nr0 = 1\nin: exit",
                "Far",
            ),
            // One of them is another number by then.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = r3\nr3 = *(u64 *)(r1 + 8)\nif r4 > 7 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = r3\nr4 = (s16)r4\nif r4 > 7 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            // Sums of 32 bits begin anew at 0.
            (
                "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nr4 = r3\nw4 += 1\nif r4 > 8 goto out\nr1 += r3\n\
                 r0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            // Stored in less than 8 bytes, loaded with a sign, and overwritten in part.
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\n*(u32 *)(r10 - 8) = r3\nr4 = *(u32 *)(r10 - 8)\nif r4 > 7 goto out\n\
                 r1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u32 *)(r1 + 0)\n*(u32 *)(r10 - 8) = r3\nr4 = *(s32 *)(r10 - 8)\nif r4 s> 7 goto out\n\
                 r1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
            (
                "r0 = 0\nr3 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r3\n*(u8 *)(r10 - 7) = 1\nif r3 > 7 goto out\n\
                 r3 = *(u64 *)(r10 - 8)\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
                "Far",
            ),
        ],
        harmless: &[
            "r6 = r1\nr1 = *(u64 *)(r1 + 0)\ncall local f\nr6 += r0\nr0 = *(u8 *)(r6 + 0)\nexit\n\
             f: r0 = 0\nif r1 > 7 goto out\nr0 = r1\nout: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = r3\nr4 += 1\nif r4 > 8 goto out\nr1 += r3\nr1 += 1\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r0 = 0\nr3 = *(u32 *)(r1 + 0)\nr4 = r3\nw4 -= 1\nif w4 > 14 goto out\nr1 += r3\n\
             r0 = *(u8 *)(r1 + 0)\nout: exit",
            "r6 = r1\nr7 = *(u64 *)(r1 + 0)\nr1 = r7\ncall local f\nif r0 != 0 goto out\nr6 += r7\n\
             r0 = *(u8 *)(r6 + 0)\nexit\nout: r0 = 7\nexit\nf: r0 = 0\nif r1 < 8 goto in\nr0 = 1\nin: exit",
            "r0 = 0\nr3 = *(u64 *)(r1 + 0)\n*(u32 *)(r10 - 8) = r3\nr4 = *(s32 *)(r10 - 8)\nif r4 s> 7 goto out\n\
             if w3 s< 0 goto out\nw3 = w3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit",
        ],
    },
    Class {
        name: "ways that meet, of which only one has copies that are linked",
        refused: &[
            (
                "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\nr3 = *(u8 *)(r1 + 1)\nr0 = 0\n\
                 if r3 > 5 goto meet\nr7 = r6\nmeet: if r6 > 7 goto out\nr9 += r7\nr0 = *(u8 *)(r9 + 0)\nout: exit",
                "Far",
            ),
            (
                "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\nr3 = *(u8 *)(r1 + 1)\nr0 = 0\n\
                 *(u64 *)(r10 - 8) = r7\nif r3 > 5 goto meet\n*(u64 *)(r10 - 8) = r6\nmeet: r4 = *(u64 *)(r10 - 8)\n\
                 if r4 > 7 goto out\nr9 += r6\nr0 = *(u8 *)(r9 + 0)\nout: exit",
                "Far",
            ),
            // Linked on both, but once with something added.
            (
                "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = r6\nr3 = *(u8 *)(r1 + 1)\nr0 = 0\nr7 += 100\n\
                 if r3 > 5 goto meet\nr7 = r6\nmeet: if r6 > 7 goto out\nr9 += r7\nr0 = *(u8 *)(r9 + 0)\nout: exit",
                "Context",
            ),
            // A function compares its argument, and ways meet in it.
            (
                "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\nr2 = *(u8 *)(r1 + 1)\nr1 = r7\n\
                 if r2 > 5 goto on\nr1 = r6\non: call local f\nif r0 != 0 goto out\nr9 += r6\n\
                 r0 = *(u8 *)(r9 + 0)\nexit\nout: r0 = 0\nexit\n\
                 f: r0 = 0\nif r1 < 8 goto in\nr0 = 1\nin: exit",
                "Far",
            ),
        ],
        harmless: &[
            "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = r6\nr3 = *(u8 *)(r1 + 1)\nr0 = 0\nif r3 > 5 goto meet\nr8 = r6\n\
             r7 = r8\nmeet: if r6 > 7 goto out\nr9 += r7\nr0 = *(u8 *)(r9 + 0)\nout: exit",
            "r9 = r1\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\nr3 = *(u8 *)(r1 + 1)\nr0 = 0\n\
             if r3 > 5 goto meet\nr7 = r6\nmeet: if r6 > 7 goto out\nif r7 > 7 goto out\nr9 += r7\n\
             r0 = *(u8 *)(r9 + 0)\nout: exit",
        ],
    },
];
