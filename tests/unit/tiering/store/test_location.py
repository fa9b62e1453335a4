"""Where a lake is: one spelling, settings from the environment, no secrets in sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from broker.model.secret import Secret
from simkit.tier.lab import TierLab, read_table
from tiering.read.lake import Lake
from tiering.read.verify import verify_table
from tiering.store.location import Credentials, StoreConfig, canonical_uri

ENV = {
    "AWS_ENDPOINT_URL": "http://ignored:1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000",
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "hush-hush",
    "AWS_SESSION_TOKEN": "temporary-hush",
}


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket//a", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("/data/lake/", "file:///data/lake"),
        ("file:///data/la%20ke", "file:///data/la%20ke"),
        ("/data/la ke/../lake", "file:///data/lake"),
        ("lake", (Path.cwd() / "lake").as_uri()),
    ],
)
def test_a_location_has_one_spelling(text: str, uri: str) -> None:
    """Trailing and doubled slashes, relative paths, s3a: all become one form, which is stable."""
    assert canonical_uri(text) == uri
    assert canonical_uri(uri) == uri


@pytest.mark.parametrize(
    "text", ["", "s3://", "gs://x", "s3://b/../c", "s3://b/x?y=1", "file://host/x"]
)
def test_what_is_no_lake_is_refused(text: str) -> None:
    """An unknown scheme, a missing bucket, a way out of the prefix."""
    with pytest.raises(InvalidConfigError):
        StoreConfig.from_env(text, {})


@pytest.mark.parametrize("name", ["100%", "%", "la ke", "la#ke", "qué?", "a;b=c&d+e", "[x]"])
def test_a_folder_of_any_name_is_one_place(tmp_path: Path, name: str) -> None:
    """What was written through a path is read through its URI, by every library, in that folder."""
    root = tmp_path / name / "lake"
    lab = TierLab(root)
    lab.source.fill(2, 10)
    lab.ship_all()
    assert lab.lake.config.root == root
    assert canonical_uri(lab.lake.uri) == lab.lake.uri == canonical_uri(str(root))
    again = Lake.open(lab.lake.uri, cluster="lab")
    assert read_table(again.table_at(lab.table.uri), 0).equals(lab.source.truth())
    verify_table(again.table(lab.stream).snapshot(), lab.table.store)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (root / "default" / "orders" / "_delta_log").is_dir()


@pytest.mark.parametrize("name", ["a%20b", "100%25", "a%2Fb", "back\\slash"])
@pytest.mark.parametrize("base", ["s3://bucket/x/", "/data/"])
def test_a_name_that_libraries_read_differently_is_refused(base: str, name: str) -> None:
    """delta-rs decodes such a name twice: a table's objects and its log would be in two places."""
    with pytest.raises(InvalidConfigError, match="choose another place"):
        StoreConfig.from_env(f"{base}{name}", {})


def test_s3_settings_come_from_the_environment() -> None:
    """The S3 endpoint wins over the general one; our own variable wins over both."""
    config = StoreConfig.from_env("s3://b/p", ENV)
    assert (config.endpoint, config.path_style, config.region) == (
        "http://127.0.0.1:9000", True, "us-east-1",
    )  # fmt: skip
    assert (config.bucket, config.prefix, config.kind) == ("b", "p", "s3")
    ours = {**ENV, "HEADWATER_S3_ENDPOINT": "https://store", "HEADWATER_S3_PATH_STYLE": "no"}
    config = StoreConfig.from_env("s3://b", {**ours, "AWS_REGION": "eu-central-1"})
    assert (config.endpoint, config.path_style) == ("https://store", False)
    assert config.region == "eu-central-1"


def test_a_profile_is_left_to_the_client_library() -> None:
    """Without a key pair the usual chain decides."""
    config = StoreConfig.from_env("s3://b", {"AWS_PROFILE": "work"})
    assert config.boto3_session_kwargs() == {"region_name": None, "profile_name": "work"}
    assert config.endpoint is None
    assert not config.path_style


@pytest.mark.parametrize(
    "env",
    [
        {"AWS_ACCESS_KEY_ID": "alone"},
        {"HEADWATER_S3_ENDPOINT": "localhost:9000"},
        {"HEADWATER_S3_PATH_STYLE": "perhaps"},
    ],
)
def test_half_a_setting_is_refused(env: dict[str, str]) -> None:
    """The mistake is an error at the start, not at the first upload."""
    with pytest.raises(InvalidConfigError):
        StoreConfig.from_env("s3://b", env)


def test_secrets_are_never_shown() -> None:
    """Neither key nor token is in the repr of any of the values."""
    config = StoreConfig.from_env("s3://b", ENV)
    assert "hush" not in repr(config)
    assert "hush" not in str(config.child("x"))
    assert config.credentials == Credentials(
        access_key_id="me",
        secret_access_key=Secret("hush-hush"),
        session_token=Secret("temporary-hush"),
    )


def test_delta_options_say_the_same_as_boto3() -> None:
    """Endpoint, region, style and keys arrive in delta-rs's words."""
    options = StoreConfig.from_env("s3://b", ENV).storage_options()
    assert options["aws_endpoint"] == "http://127.0.0.1:9000"
    assert options["aws_allow_http"] == "true"
    assert options["aws_virtual_hosted_style_request"] == "false"
    assert options["aws_session_token"] == "temporary-hush"
    assert StoreConfig.from_env("/x", {}).storage_options() == {}


def test_a_lake_names_tables_and_moves_to_others(tmp_path: Path) -> None:
    """A URI below the lake or beside it is accepted; one of another kind of store is refused."""
    lake = Lake.open(tmp_path / "lake")
    for place in (tmp_path / "lake" / "ns" / "t", tmp_path / "elsewhere"):
        assert lake.table_at(str(place)).uri == place.as_uri()
    assert lake.table_at(lake.uri).store is lake.store, "another client of S3 takes a while"
    with pytest.raises(InvalidConfigError):
        lake.table_at("s3://bucket/t")
    with pytest.raises(InvalidConfigError):
        Lake.open(tmp_path, cluster="not a name")
