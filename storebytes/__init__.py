"""Byte primitives that both engines and every kernel use.

- `_bytes_cy`: big-endian integers, copies, searches, Java's `String.hashCode`.  Written twice: in Python (`.py`) and C
(`.pxd`).
- `_crc_cy`: CRC-32.
- `_lock_cy`: a lock for compiled code.
- `finding`, `plan`: what a check finds in a folder, and the steps that a repair shows and runs.
- `arrow_table`: what the scans of both engines share.
- `lazy_names`: public names that a package imports on first use.
- `builds`: the list of kernels, which build of each runs, and whether it matches this source.

A *kernel* is a module `x_cy.py`: typed Python that Cython compiles, or that Python runs where there is no C compiler.
`ARCHITECTURE.md` (Kernels) says how to write one.  With `BROKERSTORE_PURE=1` in the environment every kernel runs from its
Python source, even if a compiled one exists.
"""

import os

if os.environ.get("BROKERSTORE_PURE") == "1":  # not `is_plain_requested`: importing `builds` takes 3 ms
    from .builds import PlainFinder

    PlainFinder.install()
