"""Pages over folders, dead or in use: `brokerstore web DIR`.  Every view is a URL, and has the JSON that the tool prints.

- `app`: addresses, what is refused (another host, a request without the token), and the answer as HTML or JSON
- `views`: what a page shows, from the tool's backends; `message_view` and `bytes_view` show one message and the bytes of a file
- `checks`: `verify` and `recover`, which read a whole folder, in processes of their own
- `changes`: what `--allow-changes` allows, each shown before it is done

The server answers one request at a time, in the process's first thread.  The templates are those of `report`.
"""

from __future__ import annotations

from .app import Site, make_app

__all__ = ["Site", "make_app"]
