"""Who callers are and what they may do, by the metadata that is applied on this broker.

Grants and tokens are in the replicated metadata, so a change is in force on a broker with the entry
that it applies. A broker that is cut off from the controllers learns of no change; its leaderships
end by themselves, and what it has it goes on serving. A policy from files, if there is one, decides
in place of the grants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.core.access.decision import Denied, Judge
from broker.core.access.policy import PolicyJudge
from broker.core.metadata.commands import (
    Command,
    CreateToken,
    GrantAccess,
    RemoveQuota,
    RevokeAccess,
    RevokeToken,
    SetQuota,
)
from broker.core.metadata.tenant_apply import level_of
from broker.errors import AccessDeniedError, InvalidRequestError, UnauthenticatedError
from broker.model.access import (
    ANONYMOUS,
    AccessState,
    Action,
    Caller,
    Grant,
    Kind,
    Resource,
    TokenRow,
    check_name,
    told,
)
from broker.model.ids import LeaseId, StreamUuid
from broker.model.quota import Quota, check_pattern
from broker.model.stream import Stream
from broker.model.tenant import Tenant
from broker.ports.access import Authenticator, Policy
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.api.identities import StaticTokens
from broker.runtime.api.tenants import Tenants
from broker.runtime.api.usage import Usage
from broker.runtime.metadata.metadata_log import WaitingMetadata

_BEARER_CHARS_MAX: Final = 16 * 1024

# The facts by which a judge decides, each of which is another object after a change.
_Judged = tuple[AccessState | None, Mapping[str, Tenant] | None, Policy | None]


class Access:
    """Implements ``AccessApi``."""

    def __init__(
        self,
        metadata: WaitingMetadata,
        clock: Clock,
        *,
        enabled: bool,
        namespace: str,
        admins: Sequence[str] = (),
        authenticators: Sequence[Authenticator] = (),
        certificates: bool = True,
        policy: Callable[[], Policy | None] = lambda: None,
        brokers_subjects: Sequence[str] = (),
    ) -> None:
        """Ask ``authenticators`` in their order; ``namespace`` is that of streams created here.

        ``policy`` returns the policy that counts now, in place of the grants; None: grants count.

        With ``certificates`` a client certificate that TLS has verified names a principal.
        ``brokers_subjects`` are patterns of the subjects that brokers use among themselves.
        """
        self.enabled = enabled
        self.usage = Usage(metadata, clock)
        self.tenants = Tenants(metadata, self._change, self.allows)
        self._metadata = metadata
        self._clock = clock
        self._namespace = namespace
        self._admins = tuple(admins)
        self._authenticators = (StaticTokens(metadata), *authenticators)
        self._certificates = certificates
        self._policy = policy
        self._brokers_subjects = tuple(brokers_subjects)
        self._named: tuple[Mapping[str, Stream], Mapping[StreamUuid, str]] = ({}, {})
        self._judged: tuple[_Judged, Judge | PolicyJudge] = (
            (None, None, None),
            Judge(None, self._admins),
        )

    @property
    def version(self) -> object:
        """See ``AccessApi.version``. Proofs with an end are looked at anew whatever it is."""
        return self._judge()

    def identify(self, *, bearer: str | None, certificate: str | None, peer: str) -> Caller:
        """See ``AccessApi.identify``."""
        if bearer is not None:
            return self._by_bearer(bearer, peer)
        if certificate and self._certificates:
            try:
                principal = check_name(certificate, "principal")
            except InvalidRequestError as cause:
                raise UnauthenticatedError(
                    "the certificate names nobody who can be a principal"
                ) from cause
            return Caller(principal=principal, via="certificate", peer=peer)
        return Caller(peer=peer)

    def _by_bearer(self, bearer: str, peer: str) -> Caller:
        if len(bearer) <= _BEARER_CHARS_MAX:
            now_us = self._clock.now_us()
            for one in self._authenticators:
                found = one.identify(bearer, now_us)
                if found is not None:
                    return Caller(
                        principal=found.principal,
                        via=found.via,
                        peer=peer,
                        token_id=found.token_id,
                        digest=found.digest,
                        expires_us=found.expires_us,
                        key=found.key,
                    )
        raise UnauthenticatedError("the token is not known here, has ended, or was revoked")

    def require_known(self, caller: Caller) -> None:
        """See ``AccessApi.require_known``."""
        if caller.principal == ANONYMOUS:
            raise UnauthenticatedError(
                "this broker asks who you are: give a token (--token-file, HEADWATER_TOKEN) or a "
                "client certificate"
            )
        if 0 < caller.expires_us <= self._clock.now_us():
            raise UnauthenticatedError("the proof of this call's identity has ended: call again")
        if caller.key and not any(one.trusts(caller.key) for one in self._authenticators):
            raise UnauthenticatedError("the key that signed the token of this call was taken away")
        if caller.token_id:
            access = self._metadata.state.access
            row = None if access is None else access.tokens.get(caller.token_id)
            if row is None or row.digest != caller.digest:
                raise UnauthenticatedError("the token of this call was revoked")

    def require(self, caller: Caller, action: Action, resource: Resource, call: str = "") -> None:
        """See ``AccessApi.require``."""
        self.require_known(caller)
        decision = self._judge().decide(caller.principal, action, resource, call)
        if isinstance(decision, Denied):
            raise AccessDeniedError(
                decision.reason,
                principal=caller.principal,
                action=action,
                resource=f"{resource.kind}:{told(resource.name)}",
            )

    def allows(self, caller: Caller, action: Action, resource: Resource) -> bool:
        """See ``AccessApi.allows``."""
        return not isinstance(self._judge().decide(caller.principal, action, resource), Denied)

    def stream(self, name: str) -> Resource:
        """See ``AccessApi.stream``."""
        present = self._metadata.state.streams.get(name)
        return Resource("stream", name, self._namespace if present is None else present.namespace)

    def stream_of_lease(self, lease_id: str) -> str | None:
        """See ``AccessApi.stream_of_lease``."""
        state = self._metadata.state
        lease = state.leases.get(LeaseId(lease_id))
        if lease is None:
            return None
        return self.stream_of_uuid(lease.stream_uuid)

    def stream_of_uuid(self, stream_uuid: str) -> str | None:
        """See ``AccessApi.stream_of_uuid``. One call may ask for a thousand."""
        streams, names = self._named
        present = self._metadata.state.streams
        if streams is not present:
            names = {one.uuid: one.name for one in present.values()}
            self._named = (present, names)
        return names.get(StreamUuid(stream_uuid))

    def consumes_some(self, caller: Caller) -> bool:
        """See ``AccessApi.consumes_some``."""
        streams = map(self.stream, self._metadata.state.streams)
        return self._judge().consumes_some(caller.principal, streams)

    def _judge(self) -> Judge | PolicyJudge:
        state, policy = self._metadata.state, self._policy()
        present = (state.access, state.tenants, policy)
        seen, judge = self._judged
        if any(one is not other for one, other in zip(seen, present, strict=True)):
            fixed = (self._admins, state.tenants.values(), self._brokers_subjects)
            judge = Judge(state.access, *fixed) if policy is None else PolicyJudge(policy, *fixed)
            self._judged = (present, judge)
        return judge

    # ------------------------------------------------------------------ changes

    def grant(self, grants: Sequence[Grant]) -> bool:
        """See ``AccessApi.grant``."""
        self._require_grants()
        return self._change(GrantAccess(grants=tuple(grants)))

    def revoke(self, grants: Sequence[Grant]) -> bool:
        """See ``AccessApi.revoke``."""
        self._require_grants()
        return self._change(RevokeAccess(grants=tuple(grants)))

    def grants(self) -> Sequence[Grant]:
        """See ``AccessApi.grants``."""
        self._require_grants()
        access = self._metadata.state.access
        return () if access is None else access.grants

    def who_can(self, action: Action, kind: Kind, name: str) -> list[str]:
        """See ``AccessApi.who_can``."""
        resource = self.stream(name) if kind == "stream" else Resource(kind, name)
        return self._judge().who_can(action, resource)

    def create_token(
        self,
        token_id: str,
        digest: str,
        principal: str,
        *,
        expires_us: int,
        note: str,
        created_by: str,
    ) -> bool:
        """See ``AccessApi.create_token``."""
        return self._change(
            CreateToken(
                token_id=token_id,
                digest=digest,
                principal=principal,
                created_us=self._clock.now_us(),
                expires_us=expires_us,
                created_by=created_by,
                note=note,
            )
        )

    def revoke_token(self, token_id: str) -> bool:
        """See ``AccessApi.revoke_token``."""
        return self._change(RevokeToken(token_id=token_id))

    def tokens(self) -> Mapping[str, TokenRow]:
        """See ``AccessApi.tokens``."""
        access = self._metadata.state.access
        return {} if access is None else access.tokens

    def set_quota(self, quota: Quota) -> bool:
        """See ``AccessApi.set_quota``."""
        return self._change(SetQuota(quota=quota))

    def remove_quota(self, principal: str) -> bool:
        """See ``AccessApi.remove_quota``."""
        return self._change(RemoveQuota(principal=check_pattern(principal)))

    def quotas(self) -> Sequence[Quota]:
        """See ``AccessApi.quotas``."""
        return self._metadata.state.quotas

    def _require_grants(self) -> None:
        if self._policy() is not None:
            raise InvalidRequestError(
                "the policy of access.casbin_policy_file decides here, and grants have no effect: "
                "change that file"
            )

    def _change(self, command: Command) -> bool:
        if not self.enabled:
            raise InvalidRequestError(
                "this broker asks nobody who they are, so anybody could grant anything: set "
                "access.enabled first"
            )
        raise_level(self._metadata, level_of(command))
        return bool(self._metadata.propose(command).get("changed"))
