"""What the site's build does to pages and docstrings."""

from __future__ import annotations

import pytest

from tools.site_text import (
    comment_behind,
    for_docstring_parser,
    for_python_markdown,
    links_to_pages,
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Rules\n- one\n- two", "Rules\n\n- one\n- two"),
        (
            "1. one\n\n   ```sh\n   a\n     b\n   ```",
            "1. one\n\n    ```sh\n    a\n      b\n    ```",
        ),
        ("- one\n  - inner\n\n    more\n- two", "- one\n    - inner\n\n        more\n- two"),
        ("- one\n  goes on", "- one\n    goes on"),
        ("- one\ngoes on", "- one\n    goes on"),
        ("- one\n\nText\nof two", "- one\n\nText\nof two"),
        ("```text\n- no list\n  1. nor this\n```", "```text\n- no list\n  1. nor this\n```"),
        ("    code\n    - of four", "    code\n    - of four"),
    ],
)
def test_lists_are_indented_as_python_markdown_wants_them(written: str, read: str) -> None:
    """GitHub's lists keep their paragraphs, fences and inner lists; code is left as it is."""
    assert for_python_markdown(written) == read


def test_a_link_to_a_folder_leads_to_its_readme() -> None:
    """Only targets for which the caller has a replacement are changed."""
    text = "[a](airflow_dags) [b](LICENSE) [c](https://example.com/airflow_dags) [d](#airflow_dags)"
    readmes = {"airflow_dags": "airflow_dags/README.md"}
    made = links_to_pages(text, readmes.get)
    assert made == text.replace("(airflow_dags)", "(airflow_dags/README.md)")


def test_exceptions_in_one_line_become_one_a_line() -> None:
    """The parser of docstrings gets each exception with a reason; the text above is untouched."""
    docstring = (
        "Read :func:`a.b` again.\n\n"
        "Raises (with the first batch):\n"
        "    UnknownStreamError, GapError.\n"
        "    TruncatedError: records have gone,\n"
        "        not to come back.\n\n"
        "GapError, OverlapError."
    )
    assert for_docstring_parser(docstring) == (
        "Read `a.b` again.\n\n"
        "Raises:\n"
        "    UnknownStreamError: as its name says.\n"
        "    GapError: as its name says.\n"
        "    TruncatedError: records have gone,\n"
        "        not to come back.\n\n"
        "GapError, OverlapError."
    )


@pytest.mark.parametrize(
    ("line", "comment"),
    [
        ('    uri: str = "a#b"  # a folder, or s3://bucket', "A folder, or s3://bucket."),
        ("    port: int = 1", ""),
        ("    port: int = 1  # noqa: A001", ""),
    ],
)
def test_a_comment_behind_a_field_is_its_docstring(line: str, comment: str) -> None:
    """A comment for people is found; one for a linter is not."""
    assert comment_behind(line) == comment
