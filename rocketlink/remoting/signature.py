"""RocketMQ's signatures: HMAC-SHA1 over the fields in the order of their names, and the body; with gRPC over the date."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=([^,/\s]*)[^,]*,\s*SignedHeaders=x-mq-date-time,\s*Signature=([0-9a-fA-F]{40})"
)


class Access(NamedTuple):
    """A key and the secret that belongs to it."""

    access_key: str
    secret: str

    def signed(self, fields: dict[str, str], body: bytes) -> dict[str, str]:
        """Return the fields with key and signature."""
        named = {**fields, ACCESS_KEY: self.access_key}
        return {**named, SIGNATURE: self._signature(named, body)}

    def accepts(self, fields: dict[str, str], body: bytes) -> bool:
        """Return whether a request has the key and the signature of its other fields and its body."""
        expected = self._signature(fields, body)
        return fields.get(ACCESS_KEY) == self.access_key and hmac.compare_digest(
            fields.get(SIGNATURE, "").encode(), expected.encode()
        )

    def accepts_metadata(self, metadata: dict[str, str]) -> bool:
        """Return whether a gRPC request's metadata have the key and the signature of its date, in any time zone."""
        found = AUTHORIZATION.fullmatch(metadata.get("authorization", ""))
        date = metadata.get("x-mq-date-time", "")
        if found is None or not date:
            return False
        expected = hmac.new(self.secret.encode(), date.encode(), hashlib.sha1).hexdigest()
        return found[1] == self.access_key and hmac.compare_digest(found[2].lower(), expected)

    def _signature(self, fields: dict[str, str], body: bytes) -> str:
        content = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE).encode() + body
        return base64.b64encode(hmac.new(self.secret.encode(), content, hashlib.sha1).digest()).decode()
