"""One self-contained HTML page about a folder of either kind: pictures, tables, problems; no network, no script.

`facts` looks at a RocketMQ store, `rabbit_facts` at a RabbitMQ folder; both give `Facts`.  `pictures` draws them as SVG with
matplotlib, `page` puts all into the template `page.html`, which escapes whatever a stranger named a topic or a key.
"""

from __future__ import annotations

from .facts import Facts, store_facts
from .page import render
from .rabbit_facts import rabbit_facts

__all__ = ["Facts", "rabbit_facts", "render", "store_facts"]
