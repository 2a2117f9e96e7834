"""`promote` of a RocketMQ store."""

from __future__ import annotations

from rocketlink import promote as execute
from rocketlink.ha.promotion import plan_promotion

from ..output import Answer, Table, count_text
from .rocketmq_folder import RocketmqFolder

PLANNED = "Nothing was changed; --apply executes the plan."
DONE = "Promoted: a broker with these settings, or a program, continues the folder."


def promote(folder: RocketmqFolder, apply: bool) -> Answer:
    """Show the end of the log, the topics to add, and the settings for a broker; with `apply` change the folder."""
    folder.require_index_layout()
    found = (execute if apply else plan_promotion)(folder.target.path, folder.config())
    topics = count_text(len(found.missing_topics), "topic")
    text: list[str | dict[str, object] | Table] = [
        DONE if apply else PLANNED,
        f"Log ends at {found.log_end}; {topics} {'were' if apply else 'to be'} added to config/topics.json",
    ]
    if found.missing_topics:
        text.append(Table(["topic", "queues"], [list(one) for one in found.missing_topics.items()]))
    text += [f"{name}={value}" for name, value in found.broker_settings.items()]
    return Answer({**found._asdict(), "applied": apply}, text)
