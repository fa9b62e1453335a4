"""A released Headwater, installed into a clean environment: it is whole, and it works from there.

The environment is a new one. pip installs the wheel into it without an index and without its
dependencies. Those come from the lock's own environment: its folder of packages is put behind the
new one's by a ``.pth`` file, and nats-server, which is a program, by a link. The editable install
in that folder is not followed (its own ``.pth`` is not read there), so nothing of the checkout is
on the path. That is shown, not assumed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Final

import pytest

from headwater.local import embedded
from projectfiles import ROOMS, ROOT, project_files
from tools import release

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# Asked in the new environment: where each package comes from, and what it has besides modules.
WHERE: Final = """
import importlib, json
from importlib import resources
from importlib.metadata import version
from pathlib import Path
import broker, headwater, spark_jobs, tiering
from spark_jobs import jars, jvm
from broker.wire.liftbridge import message_pb2, replication_pb2
print(json.dumps({
    "version": version("headwater"),
    "homes": [str(Path(one.__file__).parent) for one in (broker, headwater, spark_jobs, tiering)],
    "typed": [(Path(one.__file__).parent / "py.typed").is_file()
              for one in (broker, headwater, spark_jobs, tiering)],
    "jar": str(jvm.spark_jar(Path("unused"))),
    "jars": len(jars.PACKAGES),
    "log4j": resources.files("spark_jobs").joinpath("log4j2.properties").is_file(),
    "protos": [one.DESCRIPTOR.package for one in (message_pb2, replication_pb2)],
    "public": [callable(getattr(headwater, name)) for name in headwater.__all__],
    "source": importlib.import_module("pyspark_headwater").DefaultSource.name(),
}))
"""


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", folder, at=folder.parent)
    python = folder / "bin/python"
    _run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "--no-index", "--no-cache-dir", wheel, at=folder.parent,
    )  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "lock.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    (folder / "bin/nats-server").symlink_to(embedded.nats_server_binary())
    return folder


def _run(*command: str | Path, at: Path, stdin: str = "") -> str:
    """Run a command outside the checkout, with nothing in the environment that points back."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=at, env=kept, input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_everything_comes_from_the_wheel(place: Path) -> None:
    """Packages, type markers, jar, list of jars, templates and stubs are those of the wheel."""
    found = json.loads(_run(place / "bin/python", "-c", WHERE, at=place))
    assert found["version"] == release.version()
    (site,) = place.glob("lib/python*/site-packages")
    assert found["homes"] == [
        str(site / room) for room in ("broker", "headwater", "spark_jobs", "tiering")
    ]
    assert found["typed"] == [True] * len(ROOMS)
    assert Path(found["jar"]).is_file()
    assert Path(found["jar"]).is_relative_to(site)
    assert found["jars"] > 0
    assert found["log4j"]
    assert found["protos"] == ["proto", "protocol"]  # Liftbridge's names
    assert all(found["public"])
    assert found["source"] == "headwater"


@pytest.mark.parametrize("way", [["bin/headwater"], ["bin/python", "-m", "headwater"]])
def test_the_command_says_its_version(place: Path, way: list[str]) -> None:
    """Both ways of calling it work, from a folder that has nothing to do with the project."""
    command, *rest = way
    assert _run(place / command, *rest, "--version", at=place) == f"headwater {release.version()}\n"


def test_no_path_leads_back_to_the_checkout(place: Path) -> None:
    """Tests, benchmarks and tools of the checkout cannot be imported, nor are they in the wheel."""
    program = """
import importlib.util, sys
print([name for name in ("bench", "tests", "tools", "examples") if importlib.util.find_spec(name)])
print([path for path in sys.path if path == sys.argv[1]])
"""
    assert _run(place / "bin/python", "-c", program, ROOT, at=place).split() == ["[]", "[]"]


def test_a_server_of_the_wheel_stores_and_serves(place: Path, tmp_path: Path) -> None:
    """`up`, a stream, three records, a table, an exact read: all of it by what was installed."""
    program = """
import subprocess, sys
from pathlib import Path
import headwater
from headwater.local import embedded
from headwater.reads.history import History
assert Path(headwater.__file__).is_relative_to(sys.prefix), headwater.__file__
free = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
with embedded.start_up(Path("data"), *free) as server, headwater.Client(server.address) as client:
    client.create_stream("orders")
    with client.producer("orders") as producer:
        producer.send([b"one", b"two"]).result()
        client.tier_flush("orders")
        producer.send([b"three"]).result()
    history = History(client, client.cut("orders"))
    print(b" ".join(v for one in history.batches(["value"]) for v in one[0].to_pylist()).decode())
    print(history.certificate().records_count)
"""
    assert _run(place / "bin/python", "-c", program, at=tmp_path) == "one two three\n3\n"


def test_the_sdist_has_what_a_packager_needs(sdist: Path) -> None:
    """Sources, tests, docs, build files and the licence; nothing that is not tracked or new."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml", "requirements.lock", "LICENSE", "README.md", "CHANGELOG.md", "Makefile",
        "mkdocs.yml", "docs/requirements.lock", "examples/publish_and_read.py",
        "tools/protos.py", "tests/packaging/test_installed.py", "PKG-INFO",
        "proto/broker/wire/liftbridge/message.proto",
    } <= names  # fmt: skip
    rooms = {path for path in project_files() if path.split("/")[0] in ROOMS}
    assert rooms <= names
    assert names - {"PKG-INFO", ".gitignore", ""} <= set(project_files())
