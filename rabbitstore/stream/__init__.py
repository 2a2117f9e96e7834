"""Read streams of RabbitMQ 3.9 to 4.3, which the library osiris writes (docs/formats/rabbitmq-streams.md).

    stream/<name>/00000000000000000000.segment .index    named after the first offset in them

`layout`, `chunk`, `compression`, `tracking` and `index` decode bytes and open no file; `scan` walks the chunks of a segment and
continues after damage; `folder` reads a stream's folder, and `check` verifies it.  `repair` plans new files;
`rabbitstore.staging` puts them in place.
"""

from .folder import StreamFolder, stream_folders
from .message import StreamMessage

__all__ = ["StreamFolder", "StreamMessage", "stream_folders"]
