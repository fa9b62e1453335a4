"""The Arrow Flight service: do_put, do_get, flight infos and actions over the BrokerApi port.

broker/codec/flight parses requests, and broker/adapters/reading serves rows. Of the modules beside
this one, writes.py takes batches, listing.py says what there is, actions.py performs actions, and
errors.py translates errors. Every call runs on a thread of gRPC. A client's request can only cause
typed errors. A bug is logged, and the client gets an internal error without a traceback.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa
import structlog
from pyarrow import flight

from broker.adapters.access.gate import Gate
from broker.adapters.access.pace import Pace
from broker.adapters.flight.access_actions import AccessActions
from broker.adapters.flight.actions import StreamActions
from broker.adapters.flight.callers import HEADERS, KeepHeaders, caller_of
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.errors import to_flight, with_address
from broker.adapters.flight.group_actions import GroupActions
from broker.adapters.flight.listing import Listing, to_json
from broker.adapters.flight.operations import operate
from broker.adapters.flight.places import Places
from broker.adapters.flight.served_put import put_path
from broker.adapters.flight.sockets import ConnectionBound, KnownPeers, sever_connections
from broker.adapters.flight.writes import PutStream
from broker.adapters.reading.rows import (
    RowRange,
    check_incarnation,
    read_rows,
    resolve,
)
from broker.codec.flight.access_actions import ACCESS_ACTIONS
from broker.codec.flight.actions import ACTIONS, BODY_BYTES_MAX, decode_body
from broker.codec.flight.group_actions import GROUP_ACTIONS
from broker.codec.flight.operations import OPERATIONS
from broker.codec.flight.protocol import ReadRequest, StreamPath
from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
)
from broker.model.access import Caller
from broker.ports.access import AccessApi, AuditSink, TableCredentialsApi
from broker.ports.api import BrokerApi
from broker.ports.operators import OperatorApi
from broker.ports.system import Clock
from broker.turns import brief_call

_log = structlog.get_logger(__name__)
_READ_BYTES_MIN: Final = 64 * 1024  # of one batch of a reader, however many there are

_P = ParamSpec("_P")
_R = TypeVar("_R")


class FlightService:
    """Starts and closes the service. Between the two, calls arrive on gRPC's threads."""

    def __init__(
        self,
        api: BrokerApi,
        clock: Clock,
        config: FlightServiceConfig,
        *,
        operations: OperatorApi | None = None,
        access: AccessApi | None = None,
        audit: AuditSink | None = None,
        credentials: TableCredentialsApi | None = None,
    ) -> None:
        """Without ``access`` nobody is asked who they are."""
        self._access = access
        self._credentials = credentials
        self._gate = Gate("flight", access, audit)
        self._api = api
        self._clock = clock
        self._config = config
        self._operations = operations
        self._server: _Server | None = None
        self._known = KnownPeers(2 * config.connections_max)  # those that have gone are among them
        self._bound: ConnectionBound | None = None

    def start(self) -> None:
        """Bind and serve; returns at once.

        Raises:
            InvalidConfigError: the address is taken or the certificates are not usable.
        """
        assert self._server is None, "started twice"
        where = f"{self._config.host}:{self._config.port}"
        try:
            self._server = _Server(
                self._api,
                self._clock,
                self._config,
                self._operations,
                access=self._access,
                credentials=self._credentials,
                gate=self._gate,
                known=self._known,
            )
        except (pa.ArrowException, OSError) as cause:
            raise InvalidConfigError(
                f"Flight cannot serve on {where}: the address is in use or not of this machine, or "
                f"a certificate is not usable ({cause}). gRPC wrote the reason to stderr"
            ) from cause
        self._bound = ConnectionBound(self.port, self._config.connections_max, self._known)
        self._bound.start()
        _log.info("flight_started", host=self._config.host, port=self._server.port)

    @property
    def port(self) -> int:
        """The port that the service listens on."""
        assert self._server is not None, "not started"
        return int(self._server.port)

    @property
    def severed_connections_count(self) -> int:
        """How many connections were broken because there were too many."""
        return 0 if self._bound is None else self._bound.severed_count

    def relieve(self) -> None:
        """Break idle connections beyond the bound now. Any thread; does not block."""
        if self._bound is not None:
            self._bound.check_now()

    def close(self, *, timeout_ms: int = 5_000) -> bool:
        """Refuse new calls, end the running ones, stop; return whether all ended in time."""
        if self._server is None:
            return True
        assert self._bound is not None, "it was started"
        self._bound.stop()
        return self._server.close(timeout_ms=timeout_ms)


def _border(
    method: Callable[Concatenate[_Server, Any, _P], _R],
) -> Callable[Concatenate[_Server, Any, _P], _R]:
    """Decorate a call: it raises only Flight errors, and is refused when the service closes.

    A call whose client has gone while it waited for its turn does not begin. Strangers who connect,
    call and hang up would otherwise leave thousands of calls behind.
    """

    @functools.wraps(method)
    def call(self: _Server, context: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.errors(method.__name__):
            self.check_open()
            if context.is_cancelled():
                raise flight.FlightCancelledError("the client has gone")
            return method(self, context, *args, **kwargs)

    return call


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The methods that pyarrow calls, one per Flight call."""

    def __init__(
        self,
        api: BrokerApi,
        clock: Clock,
        config: FlightServiceConfig,
        operations: OperatorApi | None,
        *,
        access: AccessApi | None,
        credentials: TableCredentialsApi | None,
        gate: Gate,
        known: KnownPeers,
    ) -> None:
        tls = config.tls_cert is not None
        super().__init__(
            f"{'grpc+tls' if tls else 'grpc'}://{config.host}:{config.port}",
            tls_certificates=[(config.tls_cert, config.tls_key)] if tls else None,
            verify_client=config.tls_client_ca is not None,
            root_certificates=config.tls_client_ca,
            middleware=None if gate.is_open else {HEADERS: KeepHeaders()},
        )
        self._gate = gate
        self._known = known
        self._api = api
        self._operations = operations
        self._clock = clock
        self._config = config
        self._listing = Listing(api)
        self._actions = StreamActions(api, clock, self._listing, nats_url=config.nats_url)
        self._group_actions = GroupActions(api.members)
        self._closing = False
        self._writers = Places("do_put calls", config.streams_max)
        self._readers = Places("reads", config.streams_max)
        self._followers = Places(
            "reads that follow",
            config.streams_max,
            of_connection_max=config.followers_of_connection_max,
        )
        self._waits = Places("calls that wait for the lake", config.waits_max)
        self._access_actions = AccessActions(access, credentials, self._waits)
        self._puts: set[PutStream] = set()
        self._puts_lock = threading.Lock()

    # ------------------------------------------------------------------ life

    def check_open(self) -> None:
        """Raise ShuttingDownError if the service closes."""
        if self._closing:
            raise ShuttingDownError("the broker is closing")

    @contextmanager
    def errors(self, call: str) -> Iterator[None]:
        """Translate errors before they leave the service."""
        try:
            yield
        except HeadwaterError as error:
            raise to_flight(self._explained(error)) from error
        except flight.FlightError:
            raise
        except MemoryError as cause:  # also Arrow's, whose memory may be bounded
            refused = OverloadedError(f"the broker has no memory for this {call} now: {cause}")
            raise to_flight(refused) from cause
        except Exception as bug:
            _log.exception("flight_call_crashed", call=call)
            raise flight.FlightInternalError(
                f"internal error in {call}: see the broker's log"
            ) from bug

    def _explained(self, error: HeadwaterError) -> HeadwaterError:
        """Return the error; if it names a leader, with the leader's address."""
        return with_address(error, self._listing.addresses)

    def close(self, *, timeout_ms: int) -> bool:
        """End all calls and stop; return whether this took less than ``timeout_ms``.

        For half of the time calls may end by themselves. Then connections are broken.
        """
        self._closing = True
        with self._puts_lock:
            for put in self._puts:
                put.close()
        stopper = threading.Thread(target=self.shutdown, name="flight-stop", daemon=True)
        port = self.port
        stopper.start()
        stopper.join(timeout_ms / 2000)
        if stopper.is_alive():
            _log.warning("flight_connections_severed", count=sever_connections(port))
            stopper.join(timeout_ms / 2000)
        return not stopper.is_alive()

    # ------------------------------------------------------------------ data

    @_border
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take batches and answer each with its base offset or its error."""
        caller = self._caller(context, "do_put")  # before the descriptor is copied
        path, partition = put_path(descriptor.path)
        may_go_on = self._admitted(caller, "do_put", path.stream)
        stream = self._api.streams.get(path.stream)
        check_incarnation(stream, path.stream_uuid)
        handle = self._api.partitions.handle(path.stream, partition)
        if handle.leads:
            self._api.pauses.wake(path.stream, partition)
        with self._writers.take(), self._gate.opened(caller):
            put = PutStream(
                handle,
                _schema(reader),
                writer,
                clock=self._clock,
                config=self._config,
                explain=self._explained,
                policy=path.acks,
                placed_by=path.placed_by,
            )
            with self._registered(put):
                pace, stopped = self._gate.pace(caller, "publish"), self._ends(context, may_go_on)
                put.run(_chunks(reader, may_go_on, pace, stopped))

    @contextmanager
    def _registered(self, put: PutStream) -> Iterator[None]:
        with self._puts_lock:
            self.check_open()
            self._puts.add(put)
        try:
            yield
        finally:
            with self._puts_lock:
                self._puts.discard(put)

    @brief_call()
    @_border
    def do_get(self, context: Any, ticket: Any) -> Any:
        """Serve a range of rows, or the live tail."""
        caller = self._caller(context, "do_get")  # before the ticket is copied
        request = ReadRequest.from_ticket(ticket.ticket)
        may_go_on = self._admitted(caller, "do_get", request.stream)
        wanted = resolve(self._api, request)
        return flight.GeneratorStream(wanted.schema, self._rows(context, caller, wanted, may_go_on))

    def _admitted(self, caller: Caller, call: str, stream: str) -> Callable[[], None]:
        """Return the check of an open call on a stream; raises AccessError if it may not begin."""
        return self._gate.admit_watched(caller, call, {"name": stream})

    def _ends(self, context: Any, may_go_on: Callable[[], None]) -> Callable[[], bool]:
        """Return a function that tells whether the client of an open call has gone.

        The function raises an error if the call may not go on, or the service closes. It asks gRPC
        every ``idle_check_ms`` only: an answer of gRPC takes a tenth of a millisecond, during which
        no other thread runs Python.
        """
        asked_s = time.monotonic()

        def check_stop() -> bool:
            nonlocal asked_s
            self.check_open()
            may_go_on()
            now_s = time.monotonic()
            if now_s - asked_s < self._config.idle_check_ms / 1000:
                return False
            asked_s = now_s
            return bool(context.is_cancelled())

        return check_stop

    def _caller(self, context: Any, call: str) -> Caller:
        """Return who makes a call, and count the call.

        Nothing of a stranger's request is looked at: pyarrow has it whole by now, without a limit,
        and each look is a copy.
        """
        caller = caller_of(self._gate, context)
        self._gate.count_request(caller)
        self._gate.admit_known(caller, call)
        self._known.add(context.peer())
        return caller

    def _rows(
        self, context: Any, caller: Caller, wanted: RowRange, may_go_on: Callable[[], None]
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        check_stop = self._ends(context, may_go_on)
        idle_check_ms = self._config.idle_check_ms
        places = self._followers if wanted.end is None else self._readers
        pace = self._gate.pace(caller, "read")
        with (
            self.errors("do_get"),
            self._gate.opened(caller),
            places.take(context.peer()) as count,
        ):
            # A reader that is slow to take its batch keeps the batch in memory. So the more reads
            # are open, the smaller their batches are.
            share = max(_READ_BYTES_MIN, self._config.reads_bytes_max // count)
            wanted = replace(wanted, bytes_max=min(wanted.bytes_max, share))
            for rows, mark in read_rows(
                self._api, wanted, idle_check_ms=idle_check_ms, check_stop=check_stop
            ):
                if pace.is_limited and not pace.wait(rows.nbytes, check_stop):
                    return
                yield rows, mark.to_bytes()

    @brief_call()
    @_border
    def do_exchange(self, context: Any, *_call: Any) -> None:
        """Refuse the call. Without this method pyarrow would refuse it with a traceback."""
        self._gate.admit(self._caller(context, "do_exchange"), "do_exchange", {})
        raise InvalidRequestError("do_exchange is not offered; use do_put and do_get")

    # ------------------------------------------------------------------ discovery

    @brief_call()
    @_border
    def list_flights(self, context: Any, criteria: bytes) -> Any:
        """Return one info per stream that the caller may describe."""
        caller = self._caller(context, "list_flights")
        with self._gate.call(caller, "list_flights", {}):
            if criteria:
                raise InvalidRequestError("list_flights takes no criteria", field="criteria")
            present = {one.name: one for one in self._api.streams.all()}
            shown = self._gate.shown(caller, "stream", list(present))
            return iter([self._listing.info(present[name], None) for name in shown])

    @brief_call()
    @_border
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return the partitions of a stream, or one partition, with their positions."""
        caller = self._caller(context, "get_flight_info")
        path = StreamPath.from_path(descriptor.path)
        self._gate.admit(caller, "get_flight_info", {"name": path.stream})
        stream = self._api.streams.get(path.stream)
        check_incarnation(stream, path.stream_uuid)
        return self._listing.info(stream, path.partition)

    def get_schema(self, _context: Any, _descriptor: Any) -> Any:
        """Return the schema of every stream's rows, whatever is asked.

        pyarrow sends any error of this call with our traceback, so this call has none.
        """
        return flight.SchemaResult(ROW_SCHEMA)

    # ------------------------------------------------------------------ actions

    def list_actions(self, _context: Any) -> list[tuple[str, str]]:
        """Return the names and help texts of the actions."""
        return [(name, spec.help) for name, spec in ACTIONS.items()]

    @brief_call()
    @_border
    def do_action(self, context: Any, action: Any) -> Any:
        """Run one action and return its results."""
        caller = self._caller(context, action.type)
        check_body(action)
        values = decode_body(action.type, action.body.to_pybytes())
        with self._gate.call(caller, action.type, values):
            results = self._act(context, caller, action.type, values)
        return iter([to_json(result) for result in self._shown(caller, action.type, results)])

    def _act(
        self, context: Any, caller: Caller, action: str, values: dict[str, Any]
    ) -> list[dict[str, Any]]:
        if action in OPERATIONS:
            return operate(self._operations, action, values)
        if action in ACCESS_ACTIONS:
            return self._access_actions.run(caller, action, values)
        if action in GROUP_ACTIONS:
            found = getattr(self._group_actions, action)(**values)
        elif action == "tier_flush":
            with self._waits.take():
                found = self._actions.tier_flush(
                    **values, is_wanted=lambda: not (self._closing or context.is_cancelled())
                )
        else:
            found = getattr(self._actions, action)(**values)
        return list(found)

    def _shown(
        self, caller: Caller, action: str, results: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the results that the caller may see, of an action that lists what there is."""
        match action:
            case "list_streams":
                names = set(self._gate.shown(caller, "stream", [one["name"] for one in results]))
                return [one for one in results if one["name"] in names]
            case "list_groups":
                names = set(self._gate.shown(caller, "group", [one["group"] for one in results]))
                return [one for one in results if one["group"] in names]
            case _:
                return results


def check_body(action: Any) -> None:
    """Refuse a body that is too long before it is copied; raises InvalidRequestError."""
    if action.body.size > BODY_BYTES_MAX:
        what = f"the body of {action.type[:64]} of {action.body.size} bytes"
        raise InvalidRequestError(f"{what} exceeds {BODY_BYTES_MAX}", field="body")


def _schema(reader: Any) -> pa.Schema:
    """Return the schema that a do_put's client has sent first; raises InvalidRequestError."""
    try:
        return reader.schema
    except (pa.ArrowInvalid, OSError) as cause:
        raise _not_arrow(cause) from cause


def _not_arrow(cause: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"the data of this do_put is not Arrow: {cause}")


def _chunks(
    reader: Any, may_go_on: Callable[[], None], pace: Pace, stopped: Callable[[], bool]
) -> Iterator[tuple[pa.RecordBatch | None, bytes | None]]:
    """Yield the batches and metadata of a do_put's client, until it finishes or disconnects.

    A batch beyond the caller's quota is held, and the client's stream is not read meanwhile. The
    batch of a client that disconnects then was not acknowledged, and is dropped.
    """
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except pa.ArrowCancelled:
            return  # the client has disconnected, so no answer can be sent
        except (pa.ArrowInvalid, OSError) as cause:
            raise _not_arrow(cause) from cause
        may_go_on()
        size = chunk.data.get_total_buffer_size() if chunk.data is not None else 0
        if not pace.wait(size, stopped):
            return
        metadata = chunk.app_metadata
        yield chunk.data, None if metadata is None else bytes(metadata)
