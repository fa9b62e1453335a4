"""``up`` and ``broker`` decide ports, places and configuration before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker import config as broker_config
from broker.errors import InvalidConfigError
from headwater.cli import server
from headwater.cli.main import app
from headwater.local.embedded import free_port


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Hold a loopback port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_taken_default_port_gives_way(
    taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A default port in use is replaced by a free one, with a note; a chosen one is an error."""
    assert server._port("--flight-port", None, taken_port) == 0
    assert str(taken_port) in capsys.readouterr().err
    with pytest.raises(InvalidConfigError, match="--flight-port"):
        server._port("--flight-port", taken_port, 7410)
    assert server._port("--flight-port", 0, taken_port) == 0


@pytest.mark.parametrize(
    ("s3", "lake"),
    [(None, "/data/lake"), ("moto", "s3://headwater/lake"), ("s3://b/prefix", "s3://b/prefix")],
)
def test_where_the_tables_are(s3: str | None, lake: str) -> None:
    """A folder beside the log by default, a bucket on request."""
    assert server._lake(s3, Path("/data")) == lake


def test_another_scheme_is_refused() -> None:
    """A place that is neither a folder nor a known bucket scheme is refused."""
    with pytest.raises(InvalidConfigError, match="neither moto nor s3"):
        server._lake("https://bucket", Path("/data"))


def test_up_overrides_only_what_it_decides() -> None:
    """The environment's other settings stay; nothing listens beyond the loopback."""
    base = broker_config.load(
        None, {"HEADWATER_NODE_CLUSTER": "c1", "HEADWATER_FLIGHT_HOST": "0.0.0.0"}
    )
    config = server._broker_config(
        base,
        data=Path("/data"),
        nats_url="nats://127.0.0.1:9",
        lake="/data/lake",
        ports=server._Ports(nats=1, flight=2, http=3),
        level="debug",
    )
    assert config.node.cluster == "c1"
    assert config.node.data_dir == "/data/broker"
    assert (config.flight.host, config.flight.port) == ("127.0.0.1", 2)
    assert (config.http.host, config.http.port) == ("127.0.0.1", 3)
    assert (config.nats.url, config.lake.uri, config.log.level) == (
        "nats://127.0.0.1:9", "/data/lake", "debug",
    )  # fmt: skip


def test_the_daemons_configuration_is_checked(tmp_path: Path) -> None:
    """--check tells what is wrong, by key, and starts nothing."""
    file = tmp_path / "broker.toml"
    flight, http = free_port(), free_port()
    file.write_text(
        f'[node]\nid = "b1"\n[nats]\nurl = ""\n[flight]\nport = {flight}\n[http]\nport = {http}\n'
    )
    checked = CliRunner().invoke(app, ["broker", "-c", str(file), "--check"])
    assert checked.exit_code == 0, checked.output
    for text, word in (
        ("[node]\nidd = 1\n", "node.idd"),
        ("[nods]\n", "nods"),
        ("[", "cannot read"),
    ):
        file.write_text(text)
        result = CliRunner().invoke(app, ["broker", "-c", str(file), "--check"])
        assert result.exit_code == 2
        assert word in result.stderr


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is held to the same names."""
    monkeypatch.setenv("HEADWATER_FLIGHT_PROT", "7")
    result = CliRunner().invoke(app, ["broker", "--check"])
    assert result.exit_code == 2
    assert "HEADWATER_FLIGHT_PROT" in result.stderr


def test_one_up_per_directory(tmp_path: Path) -> None:
    """The lock is the kernel's: it is free again as soon as its holder is gone."""
    with (
        server._only_one(tmp_path),
        pytest.raises(InvalidConfigError, match="another"),
        server._only_one(tmp_path),
    ):
        pytest.fail("a second server got the lock")
    with server._only_one(tmp_path):
        assert (tmp_path / "up.lock").exists()


@pytest.mark.parametrize(
    ("given", "any_port", "environment", "expected"),
    [
        (None, True, {}, (True, 0)),
        (0, False, {}, (True, 0)),
        (None, False, {"HEADWATER_LIFTBRIDGE_ENABLED": "false"}, (False, 9292)),
        (
            None,
            True,
            {"HEADWATER_LIFTBRIDGE_ENABLED": "true", "HEADWATER_LIFTBRIDGE_PORT": "7"},
            (True, 7),
        ),
    ],
)
def test_up_serves_liftbridges_clients(
    given: int | None,
    any_port: bool,
    environment: dict[str, str],
    expected: tuple[bool, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On by default; the environment may say no, or where."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    base = broker_config.load(None, environment)
    found = server._with_liftbridge(base, given, any_port=any_port).liftbridge
    assert (found.enabled, found.port) == expected


def test_a_directory_stays_guarded_and_its_token_is_new_at_each_start(tmp_path: Path) -> None:
    """Nobody is asked by default; ``--no-guarded`` holds for the one start that has it."""
    plain = broker_config.BrokerConfig()
    assert server._guarded(plain, tmp_path, wanted=None) == plain
    first = server._guarded(plain, tmp_path, wanted=True).access
    assert first.enabled
    token = Path(first.owner_token_file).read_text()
    assert server._guarded(plain, tmp_path, wanted=False) == plain
    assert server._guarded(plain, tmp_path, wanted=None).access == first
    assert Path(first.owner_token_file).read_text() != token
