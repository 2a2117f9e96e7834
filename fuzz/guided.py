"""One target under atheris: `python -m fuzz.guided TARGET [libFuzzer's arguments]`.

The compiled kernels report no coverage, so run it with BROKERSTORE_PURE=1 for coverage, or without to test the kernels.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["brokerstore", "commitlog", "consumequeue", "indexfile", "messagestore", "rabbitstore", "rocketlink", "storebytes"]
):
    from fuzz.decoders import run_one
    from fuzz.run import ALL


def main() -> None:
    """Run libFuzzer, which ends the process."""
    name = sys.argv.pop(1)
    target = ALL[name]
    atheris.Setup(sys.argv, lambda data: run_one(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
