"""The name of a broker in certificates."""

from __future__ import annotations

from urllib.parse import quote


def member_uri(cluster: str, node: str) -> str:
    """Return the URI that a broker's certificate must have as a subject alternative name."""
    return f"headwater://{quote(cluster, safe='')}/broker/{quote(node, safe='')}"
