"""docs/security.md, "A guarded broker": its commands as they are written, with a real daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.local.embedded import free_port, http_status
from projectfiles import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]  # twelve commands, a process each
WAIT_S = 60


def commands() -> list[str]:
    """Return the commands of the page, one a line."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page.partition("## A guarded broker")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [line for line in block[1].splitlines() if line and not line.startswith("#")]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run a broker as the page configures it, on free ports; give its clients' environment."""
    flight, http = free_port(), free_port()
    (tmp_path / "broker.toml").write_text(
        f"""
        [node]
        data_dir = "{tmp_path}/data"
        [nats]
        url = ""
        [flight]
        port = {flight}
        [http]
        port = {http}
        [lake]
        uri = "{tmp_path}/lake"
        [access]
        enabled = true
        owner_token_file = "{tmp_path}/owner.token"
        """
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADWATER_SERVER": f"127.0.0.1:{flight}",
        "HTTP_PORT": str(http),
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "--config", str(tmp_path / "broker.toml")],
            stdout=log,
            stderr=log,
        )
    try:
        while http_status(http, "GET", "/readyz") != 200:
            assert process.poll() is None, (tmp_path / "log").read_text()
        yield environment
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert "audit" in (tmp_path / "log").read_text()


def test_the_commands_of_the_page_make_a_guarded_broker(
    daemon: dict[str, str], tmp_path: Path
) -> None:
    """Ten at most; then the tenant does its own and nothing else, and the audit tells of it."""
    listed = commands()
    assert len(listed) <= 10

    def run(command: str, *, token: str, ok: bool = True) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**daemon, "HEADWATER_TOKEN_FILE": str(tmp_path / token)},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode == 0) is ok, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    for command in listed:
        run(command, token="owner.token")
    assert http_status(int(daemon["HTTP_PORT"]), "GET", "/metrics") == 401
    run("echo two | headwater publish shop-in", token="shop.token")
    assert "AccessDeniedError" in run("headwater tier status hidden", token="shop.token", ok=False)
    told = run("headwater audit verify --json", token="owner.token")
    verified = json.loads(told)
    assert verified["problems"] == []
    assert verified["records"] > 0
