"""Byte primitives: the one room that both engines and every kernel use.

- `_bytes_cy`: big-endian integers, copies, searches, Java's `String.hashCode`.  Written twice, plain (`.py`) and C (`.pxd`).
- `_crc_cy`: CRC-32, seeded by `crcmod`'s table.
- `builds`: which kernels there are, which build of each runs, and whether it is the one of this source.

A *kernel* is a module `x_cy.py`: typed Python that Cython compiles, or that Python runs where there is no C compiler.
`ARCHITECTURE.md` (Kernels) says how one is written.  With `BROKERSTORE_PURE=1` in the environment the plain text of every
kernel runs, whatever was compiled.
"""

from .builds import PlainFinder, wants_plain

if wants_plain():
    PlainFinder.install()
