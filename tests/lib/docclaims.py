"""What a page claims about the code, and which of its claims are wrong.

``wrong_claims(page, facts)`` is pure: a page's text and what is true go in, one sentence for each
wrong claim comes out. ``repository_facts()`` asks the tree, the Makefile and the parsers.
A claim is a path, a name or a link between backticks, or a command in a ``sh`` block. What is meant
as a placeholder is not one: ``<name>``, ``…``, or capitals in the place of a command or a folder.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

_FENCE: Final = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^ *\2 *$", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_LINK: Final = re.compile(r"\]\((?![a-z+]+:)([^()\s#]*)(?:#([^()\s]+))?\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_PATH: Final = re.compile(r"(?:\.\.?/)*[\w.*-]+(?:/[\w.*{},-]+)*/?")
_CHECKED_ENDINGS: Final = (".py", ".md", ".proto", ".yml", ".java", ".jar")
_PLACEHOLDER: Final = re.compile(r"[<>…]|\b[A-Z]{1,}\b(?!\.md)")
_MAKE: Final = re.compile(
    r"\bmake ((?:[a-z][\w-]*|[A-Z_]+=\S*)(?: (?:[A-Z_]+=(?:\"[^\"]*\"|\S*)))*)"
)
_KEY: Final = re.compile(r"([a-z]+)\.([a-z_]+)")
_ENVIRONMENT: Final = re.compile(r"\bHEADWATER_[A-Z0-9_]*[A-Z0-9]\b(?!<|_<)")
_ERROR: Final = re.compile(r"\b[A-Z][A-Za-z]+Error\b")
_TEST: Final = re.compile(r"test_\w+")
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
_NAME: Final = re.compile(
    r"((?:headwater|spark_jobs|tiering|broker)(?:\.\w+)+)(?:\(.*)?", re.DOTALL
)
_FINAL_WORDS: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page, by its path in the repository."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is true of the repository."""

    paths: frozenset[str] = frozenset()  # tracked files and their folders
    make_targets: frozenset[str] = frozenset()
    make_variables: frozenset[str] = frozenset()
    commands: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # "tier flush": its options
    options: frozenset[str] = frozenset()  # of any program that docs speak of
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the configuration
    environment: frozenset[str] = frozenset()
    errors: frozenset[str] = frozenset()
    tests: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()  # dotted, of modules and what they define
    anchors: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of each page


def wrong_claims(page: Page, facts: Facts) -> list[str]:
    """Return what is wrong on a page, one sentence each, without repetition."""
    found = [
        *_links(page, facts),
        *(wrong for code in _codes(page.text) for wrong in _code_claims(page, code, facts)),
        *(wrong for line in shell_lines(page.text) for wrong in _shell_claims(line, facts)),
        *_toml(page.text, facts),
        *_environment(page.text, facts),
        *_errors(page.text, facts),
    ]
    return [f"{page.path}: {wrong}" for wrong in dict.fromkeys(found)]


def anchors_of(text: str) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    seen: dict[str, int] = {}
    made: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return frozenset(made)


def shell_lines(text: str) -> Iterator[str]:
    """Yield the commands of a page's ``sh`` blocks, each whole, without comments."""
    for found in _FENCE.finditer(text):
        if found[3] == "sh":
            joined = found[4].replace("\\\n", " ")
            yield from (line.strip() for line in joined.splitlines() if line.strip())


def _codes(text: str) -> Iterator[str]:
    """Yield what stands between backticks, on one line each."""
    for found in _CODE.finditer(_FENCE.sub("", text)):
        yield " ".join(found[1].split())


def _code_claims(page: Page, code: str, facts: Facts) -> Iterator[str]:
    yield from _path(page, code, facts)
    yield from _make(code, facts)
    yield from _commands(code, facts)
    if code.startswith("--"):
        yield from (f"no program has the option {one}" for one in _unknown_options(code, facts))
    if (key := _KEY.fullmatch(code.partition(" = ")[0])) and key[1] in facts.keys:
        known = key[2] in facts.keys[key[1]] or code.endswith((".py", ".toml", ".json", ".md"))
        if not known and code not in facts.names:
            yield f"there is no configuration key {code}"
    if _TEST.fullmatch(code) and code not in facts.tests:
        yield f"there is no test {code}"
    name = _NAME.fullmatch(code)
    if name and name[1] not in facts.names and not code.endswith((".toml", *_CHECKED_ENDINGS)):
        yield f"there is no {name[1]}"


def _unknown_options(code: str, facts: Facts) -> Iterator[str]:
    yield from (one for one in _OPTION.findall(code) if one not in facts.options)


def _shell_claims(line: str, facts: Facts) -> Iterator[str]:
    yield from _make(line, facts)
    yield from _commands(line, facts)
    tops = {path for path in facts.paths if "/" not in path} - {"."}
    for word in re.split(r"[\s'\"=]+", line.partition(" #")[0]):
        ours = _PATH.fullmatch(word) and "/" in word and word.split("/")[0] in tops
        if ours and not _exists(word, facts) and not _PLACEHOLDER.search(word):
            yield f"there is no {word}"


def _path(page: Page, code: str, facts: Facts) -> Iterator[str]:
    word = code.split(" ", maxsplit=1)[0]
    if not _PATH.fullmatch(word) or _PLACEHOLDER.search(word):
        return
    top = word.split("/")[0]
    ours = "/" in word and (top in facts.paths or top == "..")
    if not ours and not word.endswith(_CHECKED_ENDINGS):
        return
    here = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), word))
    if _exists(word, facts) or _exists(here, facts):
        return
    tail = word.rstrip("/").removeprefix("../")  # `runtime/broker.py` is enough on a broker's page
    if not any(fnmatchcase(path, f"*/{one}") for one in _braces(tail) for path in facts.paths):
        yield f"there is no {word}"


def _exists(word: str, facts: Facts) -> bool:
    bare = word.rstrip("/").removeprefix("./")
    if "*" in bare or "{" in bare:
        return all(any(fnmatchcase(path, one) for path in facts.paths) for one in _braces(bare))
    return bare in facts.paths


def _braces(word: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", word)
    if found is None:
        return [word]
    return [word.replace(found[0], one, 1) for one in found[1].split(",")]


def _make(code: str, facts: Facts) -> Iterator[str]:
    for found in _MAKE.finditer(code):
        target, *settings = found[1].split(" ")
        if target not in facts.make_targets:
            yield f"there is no target: make {target}"
        for setting in settings:
            variable = setting.partition("=")[0]
            if "=" in setting and variable.isupper() and variable not in facts.make_variables:
                yield f"the Makefile has no variable {variable}"


def _commands(code: str, facts: Facts) -> Iterator[str]:
    """Check each ``headwater COMMAND --option`` of a line of shell."""
    try:
        lexer = shlex.shlex(code.partition(" # ")[0], posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return  # an apostrophe: prose, not a command
    for place, word in enumerate(words):
        value = place > 0 and words[place - 1].startswith("-")  # --cluster headwater
        if (word == "headwater" or word.endswith("bin/headwater")) and not value:
            yield from _command(words[place + 1 :], facts)


def _command(words: list[str], facts: Facts) -> Iterator[str]:
    command = ""
    for number, word in enumerate(words):
        if word in _FINAL_WORDS or word == ")":
            return
        longer = f"{command} {word}".strip()
        if longer in facts.commands:
            command = longer
        elif word.startswith("-"):
            option = word.partition("=")[0]
            if option.startswith("--") and option not in facts.commands[command]:
                yield f"headwater {command} has no option {option}".replace("  ", " ")
        elif number == 0 or _is_group(command, facts):
            if re.fullmatch(r"[a-z][a-z-]*", word):
                yield f"there is no command: headwater {longer}"
            return


def _is_group(command: str, facts: Facts) -> bool:
    return any(other.startswith(f"{command} ") for other in facts.commands)


def _links(page: Page, facts: Facts) -> Iterator[str]:
    for target, anchor in _LINK.findall(_FENCE.sub("", page.text)):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), target))
        path = page.path if not target else path
        if path not in facts.paths:
            yield f"the link {target} leads nowhere"
        elif anchor and anchor not in facts.anchors.get(path, frozenset()):
            yield f"{path} has no heading #{anchor}"


def _toml(text: str, facts: Facts) -> Iterator[str]:
    for found in _FENCE.finditer(text):
        if found[3] != "toml":
            continue
        tables = tomllib.loads(re.sub(r"^ +", "", found[4], flags=re.MULTILINE))
        if not tables.keys() <= facts.keys.keys():
            continue  # another program's file
        for section, values in tables.items():
            yield from (
                f"there is no configuration key {section}.{key}"
                for key in values
                if key not in facts.keys[section]
            )


def _environment(text: str, facts: Facts) -> Iterator[str]:
    for name in _ENVIRONMENT.findall(text):
        if name not in facts.environment and not _is_prefix(name, text):
            yield f"nothing reads {name}"


def _is_prefix(name: str, text: str) -> bool:
    """Tell whether the name is written with a placeholder or a star behind it only."""
    return re.search(rf"\b{name}(?!\w|_[*<…])", text) is None


def _errors(text: str, facts: Facts) -> Iterator[str]:
    for name in _ERROR.findall(text):
        if name not in facts.errors:
            yield f"there is no error {name}"
