"""Check an installed wheel: `smoke.py compiled|plain FOLDER_OF_THE_INSTALLATION`, run with the environment's Python."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import brokerstore
import commitlog
from brokerstore.tool import main
from commitlog import CommitLog, LogPaths, Message, open_log
from storageio import REAL_DISK
from storebytes.builds import build_name, kernel_builds

expected_of, installed = sys.argv[1:]
assert Path(commitlog.__file__).is_relative_to(installed), f"imported from {commitlog.__file__}"
assert build_name() == expected_of, f"the {build_name()} build runs"
assert not any(build.is_stale for build in kernel_builds()), "a stale kernel"
for package in (
    "brokerstore",
    "commitlog",
    "consumequeue",
    "indexfile",
    "messagestore",
    "rabbitstore",
    "rocketlink",
    "storageio",
):
    module = importlib.import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing, f"{package} lacks {missing}"
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/commitlog"
    log = CommitLog(LogPaths(REAL_DISK, [path]), writable=True, file_size_bytes=1 << 16)
    log.attach(0)
    for number in range(1000):
        log.appender.append(Message("topic", b"body %d" % number, tags="tag", keys=["key"], queue_id=0))
    log.flush()
    log.close()
    log = open_log(path)
    assert [message.body for message in log.messages()] == [b"body %d" % number for number in range(1000)]
    log.close()
    assert main(["verify", folder]) == 0
    assert main(["info", str(Path(folder, "nothing"))]) == 3
print(f"{expected_of} build works, brokerstore {brokerstore.__version__}")
