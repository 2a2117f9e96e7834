"""The packages, which may import which, and the parsed source files of each."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Which packages each may import: dependencies only go down.
BELOW: dict[str, set[str]] = {
    "storageio": set(),
    "storebytes": {"storageio"},
    "commitlog": {"storageio", "storebytes"},
    "consumequeue": {"commitlog", "storageio", "storebytes"},
    "indexfile": {"commitlog", "storageio", "storebytes"},
    "messagestore": {"commitlog", "consumequeue", "indexfile", "storageio", "storebytes"},
    "rabbitstore": {"storageio", "storebytes"},
    "rocketlink": {"commitlog", "consumequeue", "messagestore", "storageio", "storebytes"},
    "sparkstore": {
        "brokerstore",
        "commitlog",
        "consumequeue",
        "indexfile",
        "messagestore",
        "rabbitstore",
        "rocketlink",
        "storageio",
        "storebytes",
    },
    "brokerstore": {
        "commitlog",
        "consumequeue",
        "indexfile",
        "messagestore",
        "rabbitstore",
        "rocketlink",
        "storageio",
        "storebytes",
    },
}
# Modules that other packages may import besides the names of an `__init__`: tables of a format, and parts of an engine for
# the tool, servers and Spark. A kernel (`_x_cy`) is here if code that is no kernel calls it; kernels may import any kernel.
PUBLIC_MODULES: dict[str, str] = {
    "storageio": """
        ahead background invariants linked_folder local_sockets readable_flag real_disk settings tcp_sockets
    """,
    "storebytes": """
        _crc_cy arrow_table builds finding folder_kind java_hash lazy_names plan source_signature
    """,
    "commitlog": """
        _json_cy _record_cy _rows_cy _scan_cy arrow_columns checks columns compression cursor entry_layout fields findings
        layout offset_files row_filter status topic_names walk
    """,
    "consumequeue": """
        _units_cy boundary layout
    """,
    "indexfile": """
        _index_cy _match_cy layout
    """,
    "messagestore": """
        abort_file broker.config broker.config.broker_properties broker.config.config_files broker.config.config_table
        broker.config.consumer_offsets broker.config.delay_offsets broker.config.request_modes
        broker.config.subscription_groups broker.config.topics broker.services.delay_messages
        broker.services.half_messages broker.services.pop_state broker.services.waiting_delays compaction config
        deleted_topics derive.cross_check derive.kinds dledger derive.kinds.extended derive.kinds.ordinary
        derive.kinds.scheduled derive.rebuild derive.walk differences engine excluded_topics folder folder_contents
        index_hint paths property_names read.beside_writer read.decoded read.key_search repair.config_check
        repair.rebuild_store repair.recover repair.rocksdb_check repair.verification rocksdb.database
        rocksdb.queues rocksdb.store_rows shared.aio shared.news shared.store sidecar store_settings swap timers.check
        timers.layout timers.pending timers.wheel write.admission write.durations
    """,
    "rabbitstore": """
        cluster folder format format.index_versions format.layout format.message format.properties node_folder quorum
        quorum.check read read.columns read.intact_segment_cy read.json_cy read.metadata read.queue_folder
        read.unsupported repair.check repair.classic repair.node_recover staging stream stream.check
    """,
    "rocketlink": """
        ha.promotion
    """,
    "brokerstore": """
        identify tool.codes tool.escapes tool.output
    """,
}
PACKAGES = list(BELOW)


def sources(*packages: str) -> list[Path]:
    """Return the Python files of some packages or folders."""
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imports(path: Path) -> set[str]:
    """Return the dotted names of the modules that a file imports anywhere, relative imports left out."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def inner_imports(package: str) -> dict[str, set[str]]:
    """Return, for each module of a package, the modules of the same package that it imports anywhere."""
    modules = {_module(path): path for path in sources(package)}
    found = {}
    for module, path in modules.items():
        inside = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = imports(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom):
                above = inside.rsplit(".", node.level - 1)[0] if node.level else ""
                base = ".".join(part for part in (above, node.module) if part)
                inner = [f"{base}.{name.name}" for name in node.names]
                names |= {name if name in modules else base for name in inner}
        found[module] = names & modules.keys() - {module}
    return found


def _module(path: Path) -> str:
    """Return the dotted name of a file's module, which for `__init__.py` is its folder's."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
