"""What a member's process is told to do: the argument of ``member.py``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from clusterkit.login import Login

Kind = Literal["headwater", "liftbridge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTask:
    """What a process reads, and how."""

    kind: Kind
    addresses: str  # of all brokers, as the kind's client takes them
    stream: str
    group: str
    process: str  # unlike any other one's, before and after it
    member: str = ""  # a name of its own, under which it may come back; Headwater's client only
    commits_itself: bool = False  # the application says when; else the client does
    notes: str  # a path
    tls_ca_file: str = ""  # as Login has them
    token_file: str = ""
    seed: str

    @property
    def login(self) -> Login:
        """Return how its client reaches the brokers."""
        return Login(tls_ca_file=self.tls_ca_file, token_file=self.token_file)

    def to_json(self) -> str:
        """Return the argument of the program."""
        return json.dumps(asdict(self))
