"""The pages say what the code says: configuration keys, metrics, commands, format sizes."""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_type_hints

import pytest
from typer.testing import CliRunner

from broker.codec import record_batch
from broker.codec.disk import index_format, log_state_format, segment_format
from broker.codec.flight.actions import ACTIONS
from broker.config import BrokerConfig, load
from broker.model.stream import StreamConfig
from broker.process.access import require_guarded
from broker.process.metrics import BrokerMetrics, MetricsSource
from headwater.cli.main import app
from projectfiles import ROOT


def _page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize(("section", "kind"), get_type_hints(BrokerConfig).items())
def test_every_configuration_key_is_explained(section: str, kind: type) -> None:
    """docs/operations.md has each key of each section, with the default that the code has."""
    page = _page("docs/operations.md")
    rows = [line for line in page.splitlines() if line.startswith(f"| `{section}.")]
    for field in dataclasses.fields(kind):
        (row,) = [line for line in rows if re.search(rf"\b{field.name}`", line)]
        if field.default not in (None, "", dataclasses.MISSING):
            default = str(field.default).lower() if field.type == "bool" else str(field.default)
            assert f"`{default}`" in row, f"{section}.{field.name} is {default}: {row}"


@pytest.mark.parametrize("page", ["cluster", "encryption", "liftbridge", "security"])
def test_a_configuration_on_a_page_is_one_that_starts(page: str, tmp_path: Path) -> None:
    """Nobody copies what the daemon then refuses."""
    found = re.findall(r"```toml\n(.*?)```", _page(f"docs/{page}.md"), re.DOTALL)
    whole = [block for block in found if "[node]" in block or "[cluster]" not in block]
    assert whole
    for block in whole:
        file = tmp_path / "broker.toml"
        file.write_text(textwrap.dedent(block))
        assert require_guarded(load(file, {})) == []


class _NothingYet:
    """A broker without any sample."""

    def __getattr__(self, name: str) -> Callable[[], tuple[()]]:
        return lambda: ()


def test_the_page_and_a_broker_name_the_same_metrics() -> None:
    """No alert is built on a name that nobody exports; no exported name is unexplained."""
    metrics = BrokerMetrics(cast("MetricsSource", _NothingYet()), broker_id="b", version="1")
    metrics.observe_commit(seconds=1, records_count=1)
    metrics.observe_shipment(seconds=1)
    types = re.findall(r"^# TYPE (\w+) \w+$", metrics.render().decode(), re.MULTILINE)
    exported = {name.removeprefix("headwater_") for name in types if not name.endswith("_created")}
    page = _page("docs/operations.md").partition("Metrics carry the labels")[2]
    page = page.partition("## Limits")[0]
    in_tables = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    named = {name for cell in in_tables for name in re.findall(r"`([a-z_]+)", cell)}
    assert named - exported == set()
    assert {one for one in exported - named if f"`{one}`" not in page} == set()


def test_every_setting_of_a_stream_says_whether_it_may_change() -> None:
    """docs/streams.md has a row for each setting, and no row for anything else."""
    rows = [line for line in _page("docs/streams.md").splitlines() if line.startswith("| `")]
    settings = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split(" | ", 1)[0])}
    assert settings == set(StreamConfig(subject="s").to_dict())


def test_every_warning_of_a_broker_is_explained() -> None:
    """docs/log_events.md has each event of level warning or error, and no other event."""
    rows = [line for line in _page("docs/log_events.md").splitlines() if line.startswith("| `")]
    explained = {
        event for row in rows for event in re.findall(r"`([a-z_]+)`", row.split(" | ", 1)[0])
    }
    assert explained == _warnings_in(ROOT / "broker") | _warnings_in(ROOT / "tiering")


def _warnings_in(folder: Path) -> set[str]:
    levels = ("warning", "error", "exception", "critical")
    return {
        node.args[0].value
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in levels
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_command_in_the_readme_exists() -> None:
    """A newcomer's first lines work: each `headwater …` has a help of its own."""
    commands = set(
        re.findall(r"headwater ((?:stream |tier |cluster )?[a-z-]+)\b", _shell(_page("README.md")))
    )
    assert {"up", "stream create", "publish", "query", "verify"} <= commands
    for command in commands:
        result = CliRunner().invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def _shell(page: str) -> str:
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "git clone" not in line]
    return "\n".join(line for line in lines if not line.startswith("alias"))


@pytest.mark.parametrize(
    ("magic", "size"),
    [
        (record_batch.MAGIC, record_batch.HEADER_SIZE),
        (segment_format.MAGIC, segment_format.SEGMENT_HEADER_SIZE),
        (index_format.MAGIC, index_format.INDEX_HEADER_SIZE),
        (b"HWRP", log_state_format.SLOT_SIZE),
        (b"HWEP", log_state_format.EPOCHS_HEADER_SIZE),
        (b"HWPS", log_state_format.PRODUCERS_HEADER_SIZE),
    ],
)
def test_format_drawings_have_the_sizes_of_the_code(magic: bytes, size: int) -> None:
    """Each drawing names its magic number and its header's length."""
    page = _page("docs/wire_and_disk_formats.md")
    drawing = page[page.index(f'"{magic.decode()}"') :].partition("```")[0]
    assert re.search(rf"length,? {size}\b", drawing)


def test_every_flight_action_is_named() -> None:
    """Who writes a client in another language finds each action on the page of formats."""
    page = _page("docs/wire_and_disk_formats.md")
    listed = page[page.index("\nactions  ") :].partition("```")[0]
    assert set(re.findall(r"[a-z_]+", listed)) >= ACTIONS.keys()


def test_every_decision_is_in_the_index() -> None:
    """docs/decisions/README.md names each page by its number and its own title."""
    index = _page("docs/decisions/README.md")
    for page in sorted((ROOT / "docs/decisions").glob("0*.md")):
        title = re.sub(r"^# \d+(?::| ·|\.) ", "", page.read_text("utf-8").splitlines()[0])
        assert f"| [{page.name[:4]}]({page.name}) | {title} |" in index
