"""Signature of a compiled class, for `help()`, `inspect` and editors."""

from __future__ import annotations
import __future__

import ast
import inspect
import sys


class SourceSignature:
    """Value of `__signature__` in a kernel's class: Cython keeps no signature of a constructor, so its source is parsed."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        """Return the signature of `__init__` without `self`; annotations are text."""
        import pkgutil  # takes 3 ms, and few programs ask for a signature

        package, _, name = owner.__module__.rpartition(".")
        source = pkgutil.get_data(package, f"{name}.py") or b""
        kind = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
        init = next(node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
        init.decorator_list = []
        init.body = [ast.copy_location(ast.Pass(), init)]
        names: dict[str, object] = {}
        code = compile(ast.Module([init], []), owner.__module__, "exec", __future__.annotations.compiler_flag)
        exec(code, vars(sys.modules[owner.__module__]), names)
        signature = inspect.signature(names["__init__"])  # type: ignore[arg-type]
        return signature.replace(parameters=list(signature.parameters.values())[1:])
