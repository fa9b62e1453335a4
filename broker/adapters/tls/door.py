"""The certificate files of one door: taken again when they change, and watched for their expiry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from broker.adapters.changed_files import ChangedFiles
from broker.adapters.tls.certificates import expiry_us, require_member
from broker.adapters.tls.context import LiveContext, TlsFiles
from broker.errors import InvalidConfigError

_log = structlog.get_logger(__name__)

_DAY_US: Final = 86_400_000_000
WARN_BEFORE_US: Final = 14 * _DAY_US


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
    ) -> None:
        """Watch files that the door serves now, by ``contexts`` unless it is not ``replaceable``.

        ``member`` is the URI that a broker's certificate for other brokers must go on having.

        Raises:
            InvalidConfigError: a file has no certificate.
        """
        self._door = door
        self._files = files
        self._contexts = contexts
        self._replaceable = replaceable
        self._member = member
        self._changed = ChangedFiles(files.all())
        self._expiries_us = self._read_expiries()
        self._told_us: dict[Path, int] = {}  # when the log was last told of a file

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
            if left_us <= WARN_BEFORE_US and now_us - self._told_us.get(path, 0) >= _DAY_US:
                self._told_us[path] = now_us
                _log.warning(
                    "certificate_expires",
                    door=self._door,
                    path=str(path),
                    left_days=left_us // _DAY_US,
                )

    def _take(self, now_us: int) -> None:
        files = [str(one) for one in self._files.all()]
        try:
            made = [one.make() for one in self._contexts]
            expiries_us = self._read_expiries()
            self._require_good(expiries_us, now_us)
        except InvalidConfigError as error:
            _log.warning("certificates_kept", door=self._door, files=files, reason=error.message)
            return
        if not self._replaceable:
            _log.warning("certificates_need_restart", door=self._door, files=files)
            return
        for context, newest in zip(self._contexts, made, strict=True):
            context.use(newest)
        self._expiries_us = expiries_us
        self._told_us.clear()
        _log.info("certificates_read", door=self._door, files=files)

    def _read_expiries(self) -> dict[Path, int]:
        shown = (self._files.cert_file, self._files.ca_file)
        return {one: expiry_us(one) for one in shown if one is not None}

    def _require_good(self, expiries_us: Mapping[Path, int], now_us: int) -> None:
        """Raise InvalidConfigError if the other side would refuse files that could be loaded."""
        for path, expiry in expiries_us.items():
            if expiry <= now_us:
                raise InvalidConfigError(f"{path} has a certificate that has expired")
        if self._member is not None and self._files.ca_file is not None:
            require_member(self._files.cert_file, self._files.ca_file, self._member)
