"""MkDocs' hooks for the docs site: every page has the same path as in the repository.

So a relative link that works on a checkout works on the site, and ``mkdocs build --strict`` checks
it. Pages come from the whole tree, not only from ``docs/``: each folder's README describes it.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

from tools.site_text import for_python_markdown, links_to_pages

ROOT: Final = Path(__file__).resolve().parents[1]
COMMANDS: Final = "docs/reference/commands.md"  # command_page.py's output is added at its end
_LEFT_OUT: Final = (".github/*",)
_LINK: Final = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def _tracked() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(listing.split("\0")) if (ROOT / path).is_file())


def on_config(config: Any, **_others: Any) -> Any:
    """Replace each pattern in the navigation by the pages that match it."""
    config.nav = _expanded(config.nav, [path for path in _tracked() if path.endswith(".md")])
    return config


def _expanded(entry: Any, pages: list[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(below, pages) for title, below in entry.items()}
    if not isinstance(entry, list):
        return entry
    found: list[Any] = []
    for one in entry:
        if isinstance(one, str) and "*" in one:
            found.extend(page for page in pages if fnmatchcase(page, one) and page not in entry)
        else:
            found.append(_expanded(one, pages))
    return found


def on_files(files: Any, config: Any, **_others: Any) -> Any:
    """Collect the pages, and the files that pages link to, each at its path."""
    tracked = _tracked()
    pages = [path for path in tracked if path.endswith(".md") and not _left_out(path)]
    linked = {
        posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        for page in pages
        for target in _LINK.findall((ROOT / page).read_text("utf-8"))
    }
    wanted = [*pages, *(path for path in tracked if path in linked and path not in pages)]
    theme = [file for file in files if not Path(file.abs_src_path).is_relative_to(ROOT / "docs")]
    ours = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in wanted]
    return Files([*theme, *ours])


def _left_out(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def on_page_markdown(markdown: str, page: Any, files: Any, **_others: Any) -> str:
    """Rewrite a page's text for Python-Markdown, before it is rendered."""
    path = page.file.src_uri
    if path == COMMANDS:
        markdown += "\n" + (ROOT / "build/commands.md").read_text("utf-8")

    def page_of(target: str) -> str | None:
        readme = posixpath.join(target, "README.md")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), readme))
        return readme if files.get_file_from_path(wanted) is not None else None

    return for_python_markdown(links_to_pages(markdown, page_of))
