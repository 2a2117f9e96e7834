"""What `--help` of each command shows as examples.  A test runs every one, in this order."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "put": (
        'put orders-store orders "two books" --key order-17 --tag paid --property region=eu',
        "put orders-store orders --body-file letter.txt --queue 0",
        'put vhost mail "two letters" --property message_id=letter-2 --property priority=1',
    ),
    "info": ("info orders-store", "info vhost", "info orders-store --config broker.conf"),
    "ls": ("ls orders-store", "ls vhost --json"),
    "dump": (
        "dump orders-store --limit 20",
        "dump orders-store --json --topic orders --tag paid --begin 2020-01-01",
        "dump vhost --queue mail --from-offset 3 --to-offset 5",
    ),
    "get": (
        "get orders-store --at 0",
        "get orders-store --topic orders --queue 0 --offset 0 --count 2",
        "get vhost --queue mail --offset 0",
    ),
    "query": (
        "query orders-store orders order-17",
        "query orders-store orders order-17 --json --begin 2020-01-01 --max 5",
        "query vhost mail letter-2",
    ),
    "tail": ("tail orders-store -n 5", "tail orders-store -f --topic orders", "tail vhost --queue mail -n 1"),
    "stats": ("stats orders-store", "stats orders-store --by hour", "stats vhost --json"),
    "verify": ("verify orders-store", "verify orders-store --log-only --quiet --json", "verify vhost"),
    "offsets": ("offsets show orders-store",),
    "offsets show": ("offsets show orders-store", "offsets show orders-store --group billing --topic orders --json"),
    "offsets reset": (
        "offsets reset orders-store --group billing --topic orders --to earliest",
        "offsets reset orders-store --group billing --topic orders --queue 0 --to-time 2020-01-01T00:00:00Z",
    ),
    "export": (
        "export orders-store --out orders.jsonl",
        "export orders-store --to parquet --out orders.parquet --topic orders",
        "export vhost --to csv --out mail.csv --queue mail",
    ),
    "import": (
        "import vhost --to from-rabbit --small",
        "import orders.jsonl --to from-lines --small",
        "import orders-store --to-rabbit to-rabbit",
    ),
    "copy": ("copy orders-store --to copied --topic orders", "copy orders-store --to smaller --all --commitlog-size 1048576"),
    "diff": ("diff orders-store copied", "diff vhost vhost --json"),
    "report": ("report orders-store --out orders.html", "report vhost --out vhost.html"),
    "recover": ("recover orders-store", "recover orders-store --apply --skip-bad", "recover vhost --apply --json"),
    "rebuild": ("rebuild orders-store", "rebuild orders-store index --json", "rebuild vhost"),
    "decode-id": ("decode-id 7F00000100002A9F0000000000000000",),
    "bench": ("bench . --messages 1000 --size 100",),
    "completion": ("completion bash", "completion fish"),
    "doctor": ("doctor", "doctor --json"),
}


def add_examples(group: click.Group, above: str = "") -> None:
    """Below the options of each command."""
    for name, command in group.commands.items():
        lines = EXAMPLES.get(above + name, ())
        if lines:
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  brokerstore {line}" for line in lines)
        if isinstance(command, click.Group):
            add_examples(command, f"{name} ")
