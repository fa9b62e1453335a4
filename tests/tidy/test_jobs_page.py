"""docs/jobs.md: every command on it parses with the job's own parser."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex

import pytest

from headwater.cli.job import JOBS
from projectfiles import ROOT
from spark_jobs.decode.bounds import REASONS

PAGE = (ROOT / "docs/jobs.md").read_text("utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if "headwater job" in line
]


def _parser(job: str) -> argparse.ArgumentParser:
    found: argparse.ArgumentParser = importlib.import_module(f"spark_jobs.jobs.{job}").PARSER
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_on_the_page_parses(line: str) -> None:
    """What a reader copies is accepted: the job exists and takes these arguments."""
    submitted = re.search(r"\$\(headwater job submit-args (\w+)\) (.*)", line)
    direct = re.search(r"headwater job (\w+) (.*)", line)
    found = submitted or direct
    assert found is not None, line
    _parser(found.group(1)).parse_args(shlex.split(found.group(2)))


def test_every_option_on_the_page_exists() -> None:
    """Also options that are only talked about are those of some job."""
    known = {option for job in JOBS for option in _parser(job)._option_string_actions}
    theirs = {"--subject", "--puback", "--help", "--archives", "--include_imports",
              "--descriptor_set_out"}  # fmt: skip
    assert set(re.findall(r"--[a-z][a-z_-]*", PAGE)) - theirs <= known


def test_every_job_and_every_reason_is_on_the_page() -> None:
    """The tables of the page are complete."""
    for name in (*JOBS, *REASONS):
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("job", JOBS)
def test_every_job_explains_itself(job: str) -> None:
    """Each job has a description, and each of its arguments a help."""
    made = _parser(job)
    assert made.description
    assert [action.dest for action in made._actions if not action.help] == []
    assert made.prog == f"headwater job {job}"
