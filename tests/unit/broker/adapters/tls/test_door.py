"""New certificate files are taken as a whole or not at all, and their end is told in time."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from broker.adapters.tls.context import LiveContext, TlsFiles, server_context
from broker.adapters.tls.door import DoorCertificates
from broker.errors import InvalidConfigError
from broker.model.member_uri import member_uri
from simkit.servers.certificates import Authority, revocations

DAY_US = 86_400_000_000
OURS = member_uri("prod", "b1")


class Door:
    """A door whose clients trust one authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(days=60)
        self.files = self.authority.files(folder, uris=(OURS,))
        self.context = LiveContext(partial(server_context, self.files))
        self.watch = DoorCertificates("liftbridge", self.files, [self.context], member=OURS)
        self.client_context: ssl.SSLContext | None = None  # of a client that resumes sessions
        self.session: ssl.SSLSession | None = None
        self.resumed = False

    def look(self, *, after_days: float = 0) -> list[tuple[str, str]]:
        """Look at the files; return the events with their reasons."""
        now_us = time.time_ns() // 1000 + int(after_days * DAY_US)
        with capture_logs() as lines:
            self.watch.look(now_us, at_once=True)
        return [(str(one["event"]), str(one.get("reason", ""))) for one in lines]

    def served(self) -> bytes:
        """Return the certificate that a new client gets."""
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client_context = self.client_context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client_context.load_verify_locations(cadata=self.authority.cert.decode())
        client_context.load_cert_chain(self.files.cert_file, self.files.key_file)
        session = self.session if self.client_context else None
        client = client_context.wrap_bio(back, there, server_hostname="localhost", session=session)
        server = self.context.wrap_bio(there, back, server_side=True)
        for side in (client, server, client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        with contextlib.suppress(ssl.SSLWantReadError):
            client.read(1)  # tickets come behind the handshake
        self.session = client.session
        self.resumed = bool(client.session_reused)
        found = client.getpeercert(binary_form=True)
        assert found is not None
        return found


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """Give a door with good files."""
    return Door(tmp_path)


def test_changed_files_serve_the_next_connection(door: Door) -> None:
    """Without a restart; a look that finds nothing new says nothing."""
    before = door.served()
    assert door.look() == []
    door.authority.files(door.folder, uris=(OURS,))
    assert door.look() == [("certificates_read", "")]
    after = door.served()
    assert after != before
    assert after == ssl.PEM_cert_to_DER_cert(door.files.cert_file.read_text())


def test_no_session_is_resumed_where_clients_have_certificates(door: Door) -> None:
    """A resumed session's certificate would not be verified again, though it has expired since."""
    door.client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for _ in range(2):
        door.served()
        assert not door.resumed


def _lose_the_key(door: Door) -> None:
    door.files.key_file.unlink()


def _take_another_key(door: Door) -> None:
    door.files.key_file.write_bytes(door.authority.issue("else").key)


def _write_half(door: Door) -> None:
    door.files.cert_file.write_bytes(door.files.cert_file.read_bytes()[:100])


def _spoil_the_authority(door: Door) -> None:
    (door.folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")


def _name_another_broker(door: Door) -> None:
    door.authority.files(door.folder, uris=(member_uri("prod", "b2"),))


def _sign_by_a_stranger(door: Door) -> None:
    Authority("else", days=60).files(door.folder, uris=(OURS,))
    (door.folder / "ca.crt").write_bytes(door.authority.cert)


def _take_an_expired_one(door: Door) -> None:
    Authority(days=0).files(door.folder, uris=(OURS,))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_lose_the_key, "cannot read .*broker.key: No such file"),
        (_take_another_key, "broker.crt and its key .*broker.key cannot be used"),
        (_write_half, "broker.crt"),
        (_spoil_the_authority, "ca.crt"),
        (_name_another_broker, "broker.crt names headwater://prod/broker/b2, not .*b1"),
        (_sign_by_a_stranger, "broker.crt is not signed by .*ca.crt"),
        (_take_an_expired_one, "has expired"),
    ],
)
def test_files_that_cannot_be_used_change_nothing(
    door: Door, spoil: Callable[[Door], None], told: str
) -> None:
    """The door serves what it has; the log says once which file it is, and why; repair is taken."""
    good = [one.read_bytes() for one in door.files.all()]
    context = door.context._newest
    spoil(door)
    ((event, reason),) = door.look()
    assert event == "certificates_kept"
    with pytest.raises(InvalidConfigError, match=told):
        raise InvalidConfigError(reason)
    assert door.context._newest is context
    assert door.look() == []
    for path, text in zip(door.files.all(), good, strict=True):
        path.write_bytes(text)
    assert door.look() == [("certificates_read", "")]


def test_an_authority_that_was_taken_away_is_not_trusted_any_more(door: Door) -> None:
    """The new context has the new authorities only."""
    stranger = door.authority
    door.authority = Authority("next", days=60)
    door.authority.files(door.folder, uris=(OURS,))
    assert door.look() == [("certificates_read", "")]
    assert door.served()
    stranger.files(door.folder, uris=(OURS,))  # a client of the old authority
    with pytest.raises(ssl.SSLError):
        door.served()


def test_the_end_of_a_certificate_is_told_each_day_from_two_weeks_before(door: Door) -> None:
    """Of the certificate and of the authority; a renewed one is not told of."""
    told = [("certificate_expires", "")] * 2
    assert door.look(after_days=45.5) == []
    assert door.look(after_days=46.5) == told
    assert door.look(after_days=47) == []
    assert door.look(after_days=47.6) == told
    door.authority = Authority("next", days=120)
    door.authority.files(door.folder, uris=(OURS,))
    assert door.look(after_days=48.7) == [("certificates_read", "")]


def test_a_server_that_cannot_take_them_says_so(door: Door) -> None:
    """Flight: the log says that a restart is needed, and the served one's end stays known."""
    flight = DoorCertificates("flight", door.files, [door.context], replaceable=False)
    context = door.context._newest
    served = dict(flight.expiries_us)
    Authority(days=90).files(door.folder)
    with capture_logs() as lines:
        flight.look(0, at_once=True)
    assert [one["event"] for one in lines] == ["certificates_need_restart"]
    assert flight.expiries_us == served
    assert door.context._newest is context
    _lose_the_key(door)
    with capture_logs() as lines:
        flight.look(0, at_once=True)
    assert [one["event"] for one in lines] == ["certificates_kept"], "a restart would fail"


def test_a_key_with_a_password_is_refused_not_asked_for(tmp_path: Path) -> None:
    """OpenSSL would wait for somebody at a terminal."""
    files = Authority().files(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"broker\.key"):
        server_context(_encrypted(files))


def _encrypted(files: TlsFiles) -> TlsFiles:
    key = serialization.load_pem_private_key(files.key_file.read_bytes(), None)
    files.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return files


class RevokingDoor(Door):
    """A door that refuses what its authority has revoked; its client has the door's certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.list = folder / "revoked.crl"
        self.write()
        self.files = replace(self.files, crl_file=self.list)
        self.context = LiveContext(partial(server_context, self.files))
        self.told: list[frozenset[int]] = []
        self.watch = DoorCertificates(
            "liftbridge", self.files, [self.context], on_revoked=self.told.append
        )

    def write(self, *revoked: bytes, days: float = 7, begins_days: float = -1) -> None:
        """Write the authority's list."""
        self.list.write_bytes(
            revocations(
                self.authority.cert,
                self.authority.key,
                revoked,
                days=days,
                begins_days=begins_days,
            )
        )


@pytest.fixture
def revoking(tmp_path: Path) -> RevokingDoor:
    """Give a door whose list is empty."""
    return RevokingDoor(tmp_path)


def test_a_revoked_certificate_is_refused_from_the_next_connection_on(
    revoking: RevokingDoor,
) -> None:
    """And who keeps connections is told the numbers, to end those that are open."""
    assert revoking.served()
    certificate = revoking.files.cert_file.read_bytes()
    revoking.write(certificate)
    assert revoking.look() == [("certificates_read", "")]
    with pytest.raises(ssl.SSLError, match="revoked"):
        revoking.served()
    number = x509.load_pem_x509_certificate(certificate).serial_number
    assert revoking.told == [frozenset({number})]


def _forge_the_list(door: RevokingDoor) -> None:
    stranger = Authority(days=60)  # of the same name
    door.list.write_bytes(revocations(stranger.cert, stranger.key))


def _take_anothers_list(door: RevokingDoor) -> None:
    stranger = Authority("else", days=60)
    door.list.write_bytes(revocations(stranger.cert, stranger.key))


def _add_an_authority(door: RevokingDoor) -> None:
    door.list.write_bytes(door.list.read_bytes() + Authority("else").cert)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda door: door.list.unlink(), "cannot read .*revoked.crl"),
        (lambda door: door.list.write_bytes(b""), "must have lists of revoked certificates"),
        (lambda door: door.list.write_bytes(door.list.read_bytes()[:99]), "revoked.crl"),
        (_add_an_authority, "and nothing else"),
        (_forge_the_list, "authority did not sign"),
        (_take_anothers_list, "no list of an authority"),
        (lambda door: door.write(days=-0.5), "not in force"),
        (lambda door: door.write(begins_days=1), "not in force"),
    ],
)
def test_a_list_that_cannot_be_used_leaves_the_one_before(
    revoking: RevokingDoor, spoil: Callable[[RevokingDoor], None], told: str
) -> None:
    """Who was revoked stays revoked; a start with such a list fails."""
    revoking.write(revoking.files.cert_file.read_bytes())
    revoking.look()
    spoil(revoking)
    ((event, reason),) = revoking.look()
    assert event == "certificates_kept"
    with pytest.raises(InvalidConfigError, match=told):
        raise InvalidConfigError(reason)
    with pytest.raises(ssl.SSLError, match="revoked"):
        revoking.served()
    with pytest.raises(InvalidConfigError, match=told):
        _start(revoking)


def test_a_list_of_a_later_time_is_taken_when_that_time_has_come(revoking: RevokingDoor) -> None:
    """The clocks of a broker and of an authority differ; nobody touches the file again."""
    certificate = revoking.files.cert_file.read_bytes()
    revoking.write(certificate, begins_days=0.5)
    ((event, _),) = revoking.look()
    assert event == "certificates_kept"
    assert revoking.look(after_days=0.4) == [], "it was said"
    assert revoking.look(after_days=0.6) == [("certificates_read", "")]
    number = x509.load_pem_x509_certificate(certificate).serial_number
    assert revoking.told == [frozenset({number})]


def test_an_authority_with_a_new_key_keeps_its_list_and_its_name(revoking: RevokingDoor) -> None:
    """Both of its certificates are trusted for a while, and either of its keys signs the lists."""
    renewed = Authority(days=60)
    authorities = revoking.files.ca_file
    assert authorities is not None
    authorities.write_bytes(renewed.cert + revoking.authority.cert)
    for signer in (revoking.authority, renewed):
        revoking.list.write_bytes(revocations(signer.cert, signer.key))
        assert revoking.look() == [("certificates_read", "")]


def _start(door: RevokingDoor) -> None:
    context = LiveContext(partial(server_context, door.files))
    watch = DoorCertificates("liftbridge", door.files, [context])
    watch.require_revocations_in_force(time.time_ns() // 1000)


def test_a_list_that_has_expired_lets_nobody_in_and_the_log_says_so(tmp_path: Path) -> None:
    """It may lack whom the authority has revoked since."""
    door = RevokingDoor(tmp_path)
    assert door.look(after_days=5) == []
    assert door.look(after_days=6.5) == [("certificate_expires", "")]
    assert door.look(after_days=7.1) == [("revocations_expired", "")]
    door.write(days=-0.5)
    expired = LiveContext(partial(server_context, door.files))
    door.context.use(expired._newest)
    with pytest.raises(ssl.SSLError, match="CRL has expired"):
        door.served()
