"""Configuration is checked whole at the edge: unknown keys, types, relations."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import BrokerConfig, load
from broker.errors import InvalidConfigError


def test_no_file_and_no_environment_give_the_defaults() -> None:
    """One node needs no configuration."""
    assert load(None, {}) == BrokerConfig()


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    """HEADWATER_<SECTION>_<KEY> wins, converted to the key's type."""
    path = tmp_path / "headwater.toml"
    path.write_text('[flight]\nport = 1\nhost = "h"\n[lake]\nsingle_writer = false\n')
    config = load(path, {"HEADWATER_FLIGHT_PORT": "2", "HEADWATER_LAKE_SINGLE_WRITER": "true"})
    assert (config.flight.port, config.flight.host, config.lake.single_writer) == (2, "h", True)


@pytest.mark.parametrize(
    "text",
    [
        "[flight]\nprot = 1\n",
        "[fligth]\nport = 1\n",
        "port = 1\n",
        '[flight]\nport = "1"\n',
        "[flight]\nport = 70000\n",
        '[flight]\ntls_cert_file = "x"\n',
        '[node]\ncluster = "a b"\n',
        "[flight\n",
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    """A misspelt, mistyped or contradictory file never starts a broker."""
    path = tmp_path / "headwater.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError):
        load(path, {})


@pytest.mark.parametrize(
    "environ", [{"HEADWATER_FLIGHT_PROT": "1"}, {"HEADWATER_FLIGHT_PORT": "x"}]
)
def test_a_wrong_environment_is_refused(environ: dict[str, str]) -> None:
    """A misspelt variable is an error, not a default silently kept."""
    with pytest.raises(InvalidConfigError):
        load(None, environ)


def test_variables_of_other_parts_are_left_alone() -> None:
    """The client's and the store's own variables are not the daemon's."""
    assert load(None, {"HEADWATER_SERVER": "x", "HEADWATER_S3_ENDPOINT": "y"}) == BrokerConfig()


def test_secrets_do_not_show() -> None:
    """A configuration can be logged."""
    config = load(None, {"HEADWATER_NATS_PASSWORD": "hunter2", "HEADWATER_NATS_TOKEN": "t0ps"})
    assert "hunter2" not in repr(config)
    assert "t0ps" not in repr(config)
