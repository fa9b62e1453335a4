"""An HTTP proxy before an S3 server that breaks chosen requests the way real stores do."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

_CONTROL: Final = "/__proxy"
_MEETING_SECONDS_MAX: Final = 60.0


class Break(Enum):
    """The fate of a request."""

    ERROR_500 = auto()
    SLOW_DOWN_503 = auto()
    DROP = auto()  # the connection closes without an answer; nothing was done
    DROP_AFTER = auto()  # done, then the connection closes without an answer
    HALF_BODY = auto()  # the answer's body breaks off in the middle
    HANG = auto()  # no answer until the proxy ends
    UNCONDITIONAL = auto()  # If-None-Match is not passed on: the store "ignores" it
    MEET = auto()  # waits for a second request of its method and path; an If-None-Match is first


@dataclass(frozen=True)
class Rule:
    """Break a request of this method whose path contains ``part``."""

    how: Break
    method: str
    part: str = ""


class _Meeting:
    """Two requests that are to be in flight at once; ``conditional`` tells of the first to come."""

    def __init__(self, conditional: bool) -> None:
        self.conditional = conditional
        self.second_goes_first = False
        self.met = threading.Event()
        self.done = threading.Event()


class _Proxy:
    """The requests that the proxy process is to break, and a count of requests."""

    def __init__(self, target: str, meeting_s: float) -> None:
        self._target = urlsplit(target)
        self._meeting_s = meeting_s
        self.rules: deque[Rule] = deque()
        self.always: list[Rule] = []
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self.hold_s = 0.0
        self.served: list[tuple[float, float, str, str]] = []  # begin, end, method, path
        self._meetings: dict[tuple[str, str], _Meeting] = {}

    def meet(self, method: str, path: str, *, conditional: bool) -> _Meeting | None:
        """Return once two requests are here and it is this one's turn.

        The first to go gets the meeting, to set ``done``. What is alone for long goes on, too, so
        that a test fails by what it asserts.
        """
        with self._lock:
            meeting = self._meetings.pop((method, path), None)
            is_second = meeting is not None
            if meeting is None:
                meeting = self._meetings[method, path] = _Meeting(conditional)
        if is_second:
            goes_first = conditional or not meeting.conditional
            meeting.second_goes_first = goes_first
            meeting.met.set()
        else:
            meeting.met.wait(self._meeting_s)
            with self._lock:
                if self._meetings.get((method, path)) is meeting:
                    del self._meetings[method, path]
            goes_first = not meeting.second_goes_first
        if not goes_first:
            meeting.done.wait(_MEETING_SECONDS_MAX)
        return meeting if goes_first else None

    def control(self, body: dict[str, Any]) -> dict[str, Any]:
        """Take new rules; tell the state."""
        with self._lock:
            self.rules.extend(_unpacked(rule) for rule in body.get("once", []))
            if "always" in body:
                self.always = [_unpacked(rule) for rule in body["always"]]
            self.hold_s = body.get("hold_s", self.hold_s)
            served = self.served
            if "hold_s" in body:
                self.served = []
            return {"unmet": len(self.rules), "counts": self.counts, "served": served}

    def choose(self, method: str, path: str) -> Break | None:
        """Return what to do to a request; a queued rule is used once."""
        with self._lock:
            self.counts[method] = self.counts.get(method, 0) + 1
            for rule in [*self.rules, *self.always]:
                if rule.method == method and rule.part in path:
                    if rule in self.rules:
                        self.rules.remove(rule)
                    return rule.how
        return None

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass a request on and return the answer."""
        assert self._target.hostname is not None
        connection = http.client.HTTPConnection(
            self._target.hostname, self._target.port, timeout=60
        )
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _unpacked(rule: list[str]) -> Rule:
    how, method, part = rule
    return Rule(Break[how], method, part)


def _handler(proxy: _Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.send_response_only(100)
                self.end_headers()
            body = self.rfile.read(length)
            if self.path == _CONTROL:
                state = proxy.control(json.loads(body or b"{}"))
                self._answer(200, [], json.dumps(state).encode())
                return
            how = proxy.choose(self.command, self.path)
            headers = {name: text for name, text in self.headers.items() if name != "Expect"}
            if how is Break.HANG:
                proxy.ended.wait()
            if how in (Break.DROP, Break.HANG):
                self.close_connection = True
                return
            if how in (Break.ERROR_500, Break.SLOW_DOWN_503):
                code, name = (500, "InternalError") if how is Break.ERROR_500 else (503, "SlowDown")
                self._answer(code, [], f"<Error><Code>{name}</Code></Error>".encode())
                return
            meeting: _Meeting | None = None
            if how is Break.MEET:
                conditional = "If-None-Match" in self.headers
                meeting = proxy.meet(self.command, self.path, conditional=conditional)
            if how is Break.UNCONDITIONAL:
                headers = {
                    name: text for name, text in headers.items() if name.lower() != "if-none-match"
                }
            began = time.monotonic()
            status, answered, data = proxy.forward(self.command, self.path, headers, body)
            proxy.ended.wait(proxy.hold_s)
            proxy.served.append((began, time.monotonic(), self.command, self.path))
            if meeting is not None:
                meeting.done.set()
            if how is Break.DROP_AFTER:
                self.close_connection = True
                return
            self._answer(status, answered, data, half=how is Break.HALF_BODY)

        def _answer(
            self, status: int, headers: list[tuple[str, str]], data: bytes, *, half: bool = False
        ) -> None:
            self.send_response_only(status)
            lengths = [text for name, text in headers if name.lower() == "content-length"]
            for name, text in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, text)
            size = lengths[0] if self.command == "HEAD" and lengths else str(len(data))
            self.send_header("Content-Length", size)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if half else data)
            if half:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay silent."""

    return Handler


@dataclass(frozen=True)
class Requests:
    """Answered requests: when each began and ended, its method and path."""

    all: list[tuple[float, float, str, str]]

    def __len__(self) -> int:
        """Return how many there were."""
        return len(self.all)

    @property
    def in_a_row(self) -> int:
        """The most requests of which each began after the one before it was answered."""
        count, free_at = 0, 0.0
        for began, ended, _, _ in sorted(self.all, key=lambda one: one[1]):
            if began >= free_at:
                count, free_at = count + 1, ended
        return count

    def __str__(self) -> str:
        """Return one line for each request."""
        first = min((one[0] for one in self.all), default=0.0)
        return "\n".join(
            f"{began - first:6.3f} {ended - began:6.3f} {method:4} {path}"
            for began, ended, method, path in sorted(self.all)
        )


class S3Proxy:
    """A handle on the proxy, which is a process of its own.

    Not a thread: a client library that waits for an answer while it holds Python's lock would
    wait for ever for a server in its own process.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def once(self, *rules: Rule) -> None:
        """Break the next matching requests, each rule once."""
        self._ask("POST", {"once": [_packed(rule) for rule in rules]})

    def always(self, *rules: Rule) -> None:
        """Break all matching requests; without rules, none any more."""
        self._ask("POST", {"always": [_packed(rule) for rule in rules]})

    def unmet(self) -> int:
        """Return how many rules of :meth:`once` were not met yet."""
        return int(self._ask("GET")["unmet"])

    def count(self, method: str) -> int:
        """Return how many requests of a method have come."""
        return int(self._ask("GET")["counts"].get(method, 0))

    def watch(self, hold_s: float = 0.0) -> None:
        """Begin a new list of requests; hold each answer for so long."""
        self._ask("POST", {"hold_s": hold_s})

    def served(self) -> Requests:
        """Return the requests that were answered since :meth:`watch`."""
        return Requests([tuple(one) for one in self._ask("GET")["served"]])

    def _ask(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        target = urlsplit(self.address)
        assert target.hostname is not None
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=60)
        try:
            connection.request(method, _CONTROL, body=json.dumps(body or {}))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


@contextmanager
def s3_proxy(target: str, *, meeting_s: float = _MEETING_SECONDS_MAX) -> Iterator[S3Proxy]:
    """Run a proxy on a free loopback port before ``target``; end it afterwards.

    ``meeting_s`` is how long a request waits for its rival (:attr:`Break.MEET`).
    """
    process = subprocess.Popen(
        [sys.executable, __file__, target, str(meeting_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield S3Proxy(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _packed(rule: Rule) -> list[str]:
    return [rule.how.name, rule.method, rule.part]


def _main(target: str, meeting_s: float) -> None:
    """Serve until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(_Proxy(target, meeting_s)))
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
