"""The gRPC library, and the generated modules of the protocol, which the official Python client carries."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

from storageio import MissingExtra

CLIENT = "rocketmq"  # the package of the client


def _loaded() -> tuple[Any, Any, Any]:
    """Return `grpc`, `definition_pb2` and `service_pb2`.

    The client itself is not imported: it writes a log into the home folder as soon as it is.
    """
    spec = importlib.util.find_spec(CLIENT) if CLIENT not in sys.modules else None
    if spec is not None and spec.submodule_search_locations is not None:
        package = types.ModuleType(CLIENT)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[CLIENT] = package
    try:
        library = importlib.import_module("grpc")
        importlib.import_module("grpc.aio")
        names = "definition_pb2", "service_pb2"
        definition, service = (importlib.import_module(f"{CLIENT}.grpc_protocol.{name}") for name in names)
    except ImportError as error:
        raise MissingExtra(f"gRPC clients need the extra grpc: pip install brokerstore[grpc] ({error})") from error
    finally:
        if spec is not None:
            sys.modules.pop(CLIENT, None)
    return library, definition, service


grpc, definition, service = _loaded()
