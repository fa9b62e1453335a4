"""What pages claim about the code is true: paths, commands, options, keys, names, links.

``tests/lib/docclaims.py`` finds the claims. The second half plants wrong ones, so that a rule that
has gone blind fails here.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Final

import pytest

from docclaims import Facts, Page, anchors_of, shell_lines, wrong_claims
from docfacts import pages, repository_facts
from projectfiles import ROOT, project_files
from tools import command_page

# A claim that no longer holds, and why it stands there nevertheless.
KEPT: Final = {
    "CHANGELOG.md: there is no headwater.embedded": "the note on the move names the old module",
    "CHANGELOG.md: there is no headwater.history": "the note on the move names the old module",
    "CHANGELOG.md: there is no headwater.reading": "the note says what took its place",
    "broker/wire/README.md: there is no headwater.v1": "the name that a package of ours would get",
    "docs/decisions/0022-rooms-of-about-ten-files.md: there is no ports.py": "it says what became",
}

PROGRAMS: Final = [
    path
    for path in project_files()
    if re.fullmatch(r"examples/\w+\.py|docs/notebook\.py|headwater/__init__\.py", path)
]


@cache
def _wrong_claims_of(page: Page) -> list[str]:
    return wrong_claims(page, repository_facts())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path)
def test_a_page_claims_nothing_wrong(page: Page) -> None:
    """Whatever a page names is there."""
    assert [wrong for wrong in _wrong_claims_of(page) if wrong not in KEPT] == []


@pytest.mark.parametrize("path", PROGRAMS)
def test_the_docstring_of_an_example_claims_nothing_wrong(path: str) -> None:
    """What a program for users says about commands, options and names is true, too."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8")))
    page = Page(path=path, text=(docstring or "").replace("``", "`"))
    assert wrong_claims(page, repository_facts()) == []


def test_the_help_of_the_commands_claims_nothing_wrong() -> None:
    """The examples that ``--help`` shows run: they are asked from the command, for the site."""
    help_page = Page(path="docs/reference/commands.md", text=command_page.page())
    assert "headwater stream create orders" in "\n".join(shell_lines(help_page.text))
    assert wrong_claims(help_page, repository_facts()) == []


def test_what_is_kept_is_still_needed() -> None:
    """An exception goes when its claim does."""
    wrong = {one for page in pages() for one in _wrong_claims_of(page)}
    assert set(KEPT) <= wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path)
def test_a_rooms_readme_lists_files_of_its_own_folder(page: Page) -> None:
    """The file or folder at the head of an entry is beside the README."""
    path = PurePosixPath(page.path)
    if path.name != "README.md" or path.parts[0] in {"docs", "airflow_dags"}:
        return
    heads = re.findall(r"^- ((?:`[\w./*]+`(?:, | and )?)+):", page.text, re.MULTILINE)
    named = [name for head in heads for name in re.findall(r"`([\w./*]+)`", head)]
    known = repository_facts().paths
    missing = [
        name
        for name in named
        if name.endswith((".py", "/"))
        and not name.startswith("..")
        and name not in known
        and not fnmatch.filter(known, str(path.parent / name.rstrip("/")))
    ]
    assert missing == []


def test_the_facts_are_not_empty() -> None:
    """What is compared with was found at all."""
    facts = repository_facts()
    assert {"", "up", "tier flush", "job ingest"} <= facts.commands.keys()
    assert "--brokers" in facts.commands["up"]
    assert {"test", "docs", "sim"} <= facts.make_targets
    assert {"SEED", "PYTEST_ARGS"} <= facts.make_variables
    assert "min_isr" in facts.keys["cluster"]
    assert "HEADWATER_FLIGHT_PORT" in facts.environment
    assert "GapError" in facts.errors
    assert "spark_jobs.read.unified.read" in facts.names


FACTS: Final = Facts(
    paths=frozenset({"docs", "docs/page.md", "docs/other.md", "broker", "broker/log.py"}),
    make_targets=frozenset({"test"}),
    make_variables=frozenset({"ARGS"}),
    commands={
        "": frozenset({"--version"}),
        "up": frozenset({"--brokers"}),
        "tier": frozenset(),
        "tier flush": frozenset({"--json"}),
    },
    options=frozenset({"--version", "--brokers", "--json"}),
    keys={"node": frozenset({"id"})},
    environment=frozenset({"HEADWATER_SERVER"}),
    errors=frozenset({"GapError"}),
    tests=frozenset({"test_it_works"}),
    names=frozenset({"headwater.read"}),
    anchors={"docs/other.md": frozenset({"a-heading"})},
)

RIGHT: Final = """# A page

`broker/log.py`, `log.py`, `broker/`, `docs/*.md`, `broker/<room>/x.py`, `lake/default/x.json`;
`make test ARGS="-k x"`, `headwater up --brokers 3 | jq`, `headwater COMMAND --help`, `--json`,
`node.id`, `HEADWATER_SERVER`, HEADWATER_NODE_*, `GapError`, `test_it_works`, `headwater.read(x)`,
[a link](other.md#a-heading), [itself](page.md), [elsewhere](https://example.com/x.md).

```sh
headwater up                       # a comment with --nonsense
seq 10 | headwater tier flush orders --json && make test
```

```toml
[node]
id = "b1"
```

```text
`broker/none.py` in a block that is no shell
```
"""

WRONG: Final = (
    ("see `broker/none.py`", "there is no broker/none.py"),
    ("see `none.py`", "there is no none.py"),
    ("see `docs/*.txt`", "there is no docs/*.txt"),
    ("run `make tset`", "there is no target: make tset"),
    ("run `make test ARG=1`", "the Makefile has no variable ARG"),
    ("run `headwater pu`", "there is no command: headwater pu"),
    ("run `headwater up --broker 3`", "headwater up has no option --broker"),
    ("run `headwater tier --json`", "headwater tier has no option --json"),
    ("run `headwater tier flsh`", "there is no command: headwater tier flsh"),
    ("give `--brokres 3`", "no program has the option --brokres"),
    ("set `node.name`", "there is no configuration key node.name"),
    ("set `HEADWATER_SEVRER`", "nothing reads HEADWATER_SEVRER"),
    ("a `GasError`", "there is no error GasError"),
    ("by `test_it_wroks`", "there is no test test_it_wroks"),
    ("call `headwater.rread(x)`", "there is no headwater.rread"),
    ("[a](none.md)", "the link none.md leads nowhere"),
    ("[a](other.md#no-heading)", "docs/other.md has no heading #no-heading"),
    ("```sh\nmake tset\n```", "there is no target: make tset"),
    ("```sh\nx=$(headwater up \\\n  --broker 3)\n```", "headwater up has no option --broker"),
    ("```sh\npython docs/none.py\n```", "there is no docs/none.py"),
    (
        '1. so:\n\n   ```toml\n   [node]\n   nm = "b1"\n   ```',
        "there is no configuration key node.nm",
    ),
)


def test_true_claims_are_let_through() -> None:
    """What is there, and what is only a placeholder or another program's, is not reported."""
    assert wrong_claims(Page(path="docs/page.md", text=RIGHT), FACTS) == []


@pytest.mark.parametrize(("text", "wrong"), WRONG)
def test_a_wrong_claim_is_reported(text: str, wrong: str) -> None:
    """Each kind of claim is found, and said once, with its page."""
    page = Page(path="docs/page.md", text=f"{RIGHT}\n{text}\n")
    assert wrong_claims(page, FACTS) == [f"docs/page.md: {wrong}"]


def test_anchors_are_those_of_github() -> None:
    """Punctuation goes, blanks become hyphens, a repeated heading is numbered."""
    text = "# A page\n## `--flag`, and *more*\n## Twice\n```sh\n# no heading\n```\n## Twice\n"
    assert anchors_of(text) == {"a-page", "--flag-and-more", "twice", "twice-1"}


def test_lines_of_shell_are_whole() -> None:
    """A line that goes on is one command; blocks of other languages are none."""
    text = "```sh\na \\\n  b\n\nc\n```\n```python\nd\n```\n"
    assert [" ".join(line.split()) for line in shell_lines(text)] == ["a b", "c"]
