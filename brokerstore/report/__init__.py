"""A self-contained HTML page about a folder of either kind: charts, tables, problems; no network, no script.

`facts` reads a RocketMQ store and `rabbit_facts` a RabbitMQ folder; both return `Facts`.  `pictures` draws them as SVG, and
`page` fills the templates, which escape every name; `brokerstore.web` fills the same ones for a folder that is looked at.
"""

from __future__ import annotations

from .facts import Facts, StoreFacts
from .page import render
from .rabbit_facts import rabbit_facts

__all__ = ["Facts", "StoreFacts", "rabbit_facts", "render"]
