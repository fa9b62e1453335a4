"""The hint how to install an extra of Headwater into this environment."""

from __future__ import annotations

import json
import sys


def install_hint(extra: str) -> str:
    """Return a sentence with the command that installs the extra from where Headwater came.

    A wheel or a checkout is named by its path. Only a Headwater that came from a package index is
    named by its name: another index may have another project of that name.
    """
    origin = _origin()
    what = f"headwater[{extra}]" if origin is None else f"headwater[{extra}] @ {origin}"
    return f"Install it into this environment: {sys.executable} -m pip install '{what}'"


def _origin() -> str | None:
    """Return the URL of the file or folder that Headwater was installed from; None: an index."""
    import importlib.metadata  # noqa: PLC0415  # 20 ms, and only a failure asks

    try:
        told = importlib.metadata.distribution("headwater").read_text("direct_url.json")
        url = json.loads(told or "{}").get("url")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    return url if isinstance(url, str) else None
