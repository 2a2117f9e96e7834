"""The command-line tool `brokerstore`.

    brokerstore info|ls|dump|get|query|tail|put|stats|verify|recover|rebuild|offsets|export|import|decode-id|doctor ...

Data goes to stdout, diagnostics to stderr; `--json` prints one object, or one line a message.  Only put, copy,
import, rebuild, offsets reset, replicate and serve change a folder, and with --apply purge, requeue, topic delete, group
delete, recover and promote.  Exit codes are fixed (`codes`): 0
clean; 1 a problem was found and reported; 2 wrong use; 3 not a store, or of an unknown version; 4 in use; 5 input or output
failed; 6 repaired, data dropped; 7 repaired, nothing dropped; 130 interrupted.  A Python traceback is shown only with
BROKERSTORE_DEBUG=1.

- `commands`: one module a command, imported when it runs
- `backends`: what the commands do, once for RocketMQ and once for RabbitMQ
- `options`: shared options and the decorators of commands; `target`: the folder that a command works on
- `output`, `escapes`: printing; `codes`, `hints`: exit codes, and what to run next
- `export_forms`, `export_parts`: file formats of an export, and continuing an interrupted one
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .codes import INTERRUPTED, IO_ERROR, PROBLEM, WRONG_USE
from .escapes import escaped_stderr, escaped_traceback, printable
from .output import OutputClosedError, print_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    with escaped_stderr():
        return _guarded(arguments)


def _guarded(arguments: Sequence[str] | None) -> int:
    """Run a command; turn every error into a line and an exit code, unless BROKERSTORE_DEBUG=1 asks for the traceback."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (BrokenPipeError, OutputClosedError):
        code = _discard_output()
    except OSError as error:
        code = _report(
            f"output failed: {_of_file(error)}{error.strerror or error}; run: df -h  (free some space for the output)",
            IO_ERROR,
        )
    except ImportError as error:
        code = _cannot_load(error, arguments)
    except MemoryError:
        code = _report("out of memory; run: free -h", IO_ERROR)
    except Exception as error:
        if os.environ.get("BROKERSTORE_DEBUG") == "1":
            sys.excepthook = escaped_traceback
            raise
        code = _report(f"internal error, please report it: {type(error).__name__}: {error}", PROBLEM)
        _report("run the command again with BROKERSTORE_DEBUG=1  (include the traceback in the report)", PROBLEM)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    """Parse the options and run the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no error
    try:
        import click
    except ModuleNotFoundError:
        return _report("the tool needs the 'cli' extra: pip install 'brokerstore[cli]'", WRONG_USE)
    from .commands import brokerstore

    try:
        code = brokerstore.main(args=arguments, prog_name="brokerstore", standalone_mode=False)
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)  # line ends in names, too; those of the usage lines are click's
        error.show(sys.stderr)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _cannot_load(error: ImportError, arguments: Sequence[str] | None) -> int:
    """Report a broken installation, mostly a kernel compiled against other kernels; `doctor` names each."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["doctor"]:
        from .commands.doctor import examine  # needs no kernel

        return examine("--json" in words)
    return _report(f"a part of this installation cannot be loaded: {error}; run: brokerstore doctor", PROBLEM)


def _of_file(error: OSError) -> str:
    return f"{error.filename}: " if error.filename is not None else ""


def _discard_output() -> int:
    """Discard the rest of the output, so that nothing is reported at exit."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    return 0


def _report(text: str, code: int) -> int:
    """Write one line to stderr and return the code."""
    print_line(f"brokerstore: {text}")
    return code
