"""What a failed Spark action is to a job: our typed error, a process that was lost, or a defect."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from broker.errors import GapError, HeadwaterError, UnavailableError
from spark_jobs.failures import annotate, lost_process, translated, typed

FAILED = "[STREAM_FAILED] Query [id = 8b, runId = 49] terminated with exception: "

# As Spark 4.2 words them; the first is what a killed planner looks like, its cause has no message.
LOST = (
    f"{FAILED} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x",
    f"{FAILED}null SQLSTATE: XXKST\n=== Streaming Query ===",
    f"{FAILED}Connection reset SQLSTATE: XXKST",
    f"{FAILED}Broken pipe SQLSTATE: XXKST",
    f"{FAILED}Job aborted due to stage failure: Lost task 0.3: Python worker exited unexpectedly",
    "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)",
)
DEFECTS = (
    f"{FAILED}Error\nTraceback (most recent call last):\n  File x\nBrokenPipeError: Broken pipe",
    f"{FAILED}[UNRESOLVED_COLUMN] a column cannot be resolved SQLSTATE: 42703",
)


@pytest.mark.parametrize("text", LOST)
def test_a_lost_process_is_worth_another_try(text: str) -> None:
    """A planner, a worker or an executor that died is no defect: the job may run again."""
    found = lost_process(PySparkException(text))
    assert isinstance(found, UnavailableError)
    assert found.retriable


@pytest.mark.parametrize("text", DEFECTS)
def test_what_python_code_or_a_query_did_wrong_is_not(text: str) -> None:
    """Another try would hide the defect."""
    assert lost_process(PySparkException(text)) is None


def test_an_action_that_lost_a_process_fails_typed() -> None:
    """All jobs get the same typed error."""
    with pytest.raises(UnavailableError, match="lost"), translated():
        raise PySparkException(LOST[4])


def test_our_own_error_goes_first() -> None:
    """The caller gets the typed error from inside a failure of Spark."""
    try:
        raise annotate(GapError("a gap", partition=0, start=1, end=2))
    except HeadwaterError as error:
        text = "\n".join([LOST[4], *error.__notes__])
    assert isinstance(typed(PySparkException(text)), GapError)
    with pytest.raises(GapError), translated():
        raise PySparkException(text)
