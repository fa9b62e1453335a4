"""Which stream may answer the publishers of a subject; checked when streams are made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.errors import InvalidStreamError
from broker.model.stream import Stream
from broker.model.subjects import any_overlap, is_shared
from broker.model.tenant import Tenant, tenant_of


def refused_answers(
    wanted: Stream, present: Iterable[Stream], tenants: Mapping[str, Tenant]
) -> InvalidStreamError | None:
    """Return the error if ``wanted`` would answer publishers of another stream or service, or None.

    Two streams of one queue group share the messages, so each message has one answer. The error of
    a tenant's stream does not name a stream that is not the tenant's.
    """
    config = wanted.config
    if not config.puback:
        return None
    if is_shared(config.subject) and not config.puback_headers_only:
        return InvalidStreamError(
            f"with puback, a stream on subject {config.subject!r} would answer other clients' "
            "requests, before their services do: set puback_headers_only "
            "(--puback-headers-only), to answer only messages with a header of JetStream's "
            "publishers, or name a narrower subject",
            subject=config.subject,
        )
    if config.puback_overlap:
        return None
    tenant = tenant_of(tenants, wanted.name)
    for one in sorted(present, key=lambda stream: stream.name):
        if not one.config.puback or config.queue_group == one.config.queue_group is not None:
            continue
        if any_overlap(config.subjects, one.config.subjects):
            if tenant not in (None, tenant_of(tenants, one.name)):
                return InvalidStreamError(
                    f"another stream answers publishers on a subject that overlaps "
                    f"{config.subject!r}: create this stream without puback",
                    subject=config.subject,
                )
            return InvalidStreamError(
                f"stream {one.name!r} answers publishers on {one.config.subject!r}, which overlaps "
                f"{config.subject!r}: with puback on both, a publisher gets two answers and may "
                "take one for the other. Create this stream without puback, or set puback_overlap "
                "(--puback-overlap) if its publishers look at the stream in each answer",
                stream=one.name,
                subject=one.config.subject,
            )
    return None
