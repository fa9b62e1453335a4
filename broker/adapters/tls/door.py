"""The certificate files of one door: taken again when they change, and watched for their expiry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from broker.adapters.changed_files import ChangedFiles
from broker.adapters.tls.certificates import (
    Revocations,
    expiry_us,
    read_revocations,
    require_member,
)
from broker.adapters.tls.context import LiveContext, TlsFiles
from broker.errors import InvalidConfigError

_log = structlog.get_logger(__name__)

_DAY_US: Final = 86_400_000_000
WARN_BEFORE_US: Final = 14 * _DAY_US
_LIST_WARN_BEFORE_US: Final = _DAY_US  # authorities make lists of revoked certificates often


class DoorCertificates:
    """The files of one door. Owner: one thread, except for :attr:`expiries_us`."""

    def __init__(
        self,
        door: str,
        files: TlsFiles,
        contexts: Sequence[LiveContext],
        *,
        replaceable: bool = True,
        member: str | None = None,
        on_revoked: Callable[[frozenset[int]], object] = frozenset,
    ) -> None:
        """Watch files that the door serves now, by ``contexts`` unless it is not ``replaceable``.

        ``member`` is the URI that a broker's certificate for other brokers must go on having.
        ``on_revoked`` is given the numbers of all revoked certificates when files were taken again.

        Raises:
            InvalidConfigError: a file has no certificate, or no list of revoked ones.
        """
        self._door = door
        self._files = files
        self._contexts = contexts
        self._replaceable = replaceable
        self._member = member
        self._on_revoked = on_revoked
        self._changed = ChangedFiles(files.all())
        self._revocations = self._read_revocations()
        self._expiries_us = self._read_expiries(self._revocations)
        self._told_us: dict[tuple[Path, bool], int] = {}  # when the log was last told of a file

    @property
    def door(self) -> str:
        """Name of the door."""
        return self._door

    @property
    def expiries_us(self) -> Mapping[Path, int]:
        """When each file that is served expires, in microseconds UTC. Any thread."""
        return self._expiries_us

    def look(self, now_us: int, *, at_once: bool = False) -> None:
        """Take changed files, and tell the log of those that expire soon.

        With ``at_once`` a change is not waited for until the files are the same at two looks.
        """
        if self._changed.ready(at_once=at_once):
            self._take(now_us)
        for path, expiry in self._expiries_us.items():
            left_us = expiry - now_us
            is_list = path == self._files.crl_file
            before_us = _LIST_WARN_BEFORE_US if is_list else WARN_BEFORE_US
            about = (path, left_us <= 0)
            if left_us > before_us or now_us - self._told_us.get(about, 0) < _DAY_US:
                continue
            self._told_us[about] = now_us
            if is_list and left_us <= 0:
                _log.error(
                    "revocations_expired",
                    door=self._door,
                    path=str(path),
                    effect="nobody is let in until there is a newer list",
                )
            else:
                _log.warning(
                    "certificate_expires",
                    door=self._door,
                    path=str(path),
                    left_days=left_us // _DAY_US,
                )

    def require_revocations_in_force(self, now_us: int) -> None:
        """Raise InvalidConfigError if a list of revoked certificates lets nobody in now."""
        if self._revocations is not None and self._files.crl_file is not None:
            self._revocations.require_in_force(self._files.crl_file, now_us)

    def _take(self, now_us: int) -> None:
        files = [str(one) for one in self._files.all()]
        try:
            made = [one.make() for one in self._contexts]
            revocations = self._read_revocations()
            expiries_us = self._read_expiries(revocations)
            self._require_good(expiries_us, revocations, now_us)
        except InvalidConfigError as error:
            if not self._changed.repeats:
                _log.warning(
                    "certificates_kept", door=self._door, files=files, reason=error.message
                )
            return
        self._changed.taken()
        if not self._replaceable:
            _log.warning("certificates_need_restart", door=self._door, files=files)
            return
        for context, newest in zip(self._contexts, made, strict=True):
            context.use(newest)
        self._revocations = revocations
        self._expiries_us = expiries_us
        self._told_us.clear()
        if revocations is not None:
            self._on_revoked(revocations.serials)
        _log.info("certificates_read", door=self._door, files=files)

    def _read_revocations(self) -> Revocations | None:
        if self._files.crl_file is None or self._files.ca_file is None:
            return None
        return read_revocations(self._files.crl_file, self._files.ca_file)

    def _read_expiries(self, revocations: Revocations | None) -> dict[Path, int]:
        shown = (self._files.cert_file, self._files.ca_file)
        found = {one: expiry_us(one) for one in shown if one is not None}
        if revocations is not None and self._files.crl_file is not None:
            found[self._files.crl_file] = revocations.expiry_us
        return found

    def _require_good(
        self, expiries_us: Mapping[Path, int], revocations: Revocations | None, now_us: int
    ) -> None:
        """Raise InvalidConfigError if files that could be loaded would let nobody in."""
        if revocations is not None and self._files.crl_file is not None:
            revocations.require_in_force(self._files.crl_file, now_us)
        for path, expiry in expiries_us.items():
            if expiry <= now_us:
                raise InvalidConfigError(f"{path} has a certificate that has expired")
        if self._member is not None and self._files.ca_file is not None:
            require_member(self._files.cert_file, self._files.ca_file, self._member)
