"""The name of a broker in certificates."""

from __future__ import annotations

from urllib.parse import quote


def member_uri(cluster: str, node: str) -> str:
    """Return what a broker's certificate has to name (subject alternative name, URI)."""
    return f"headwater://{quote(cluster, safe='')}/broker/{quote(node, safe='')}"
