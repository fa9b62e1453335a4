"""A policy in casbin's files, a model and its lines, by the library pycasbin.

The two files are loaded and checked as a whole. Files that cannot be used, or of which a line would
be skipped or fail later, are refused: at the start, and while the daemon runs the policy from
before stays. A model that allows a subject that no line names is refused, too.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Final

import casbin
import structlog
from casbin.persist import Adapter, load_policy_line

from broker.adapters.changed_files import ChangedFiles
from broker.errors import InvalidConfigError

_log = structlog.get_logger(__name__)

_FILE_BYTES_MAX: Final = 1024 * 1024
_LINES_MAX: Final = 1_000  # a question that was not asked before evaluates each: 3 to 5 us a line
_ALLOWS_BY_DEFAULT: Final = "!some(where (p_eft == deny))"
_SEES_NO_DENY: Final = "some(where (p_eft == allow))"
_EFFECTS: Final = ("allow", "deny")
_FALSE: Final = "1 == 2"  # of a field that may hold an expression


class CasbinPolicy:
    """Implements ``Policy`` by one state of the files. Any thread; a question takes a lock."""

    def __init__(self, model: str, lines: str) -> None:
        """Load a model and its policy, given as texts.

        Raises:
            InvalidConfigError: one of them cannot be used.
        """
        self._lock = threading.Lock()
        try:
            parsed = casbin.Enforcer.new_model(text=model)
            _require_known(parsed)
            adapter = _Lines(lines)
            self._enforcer = casbin.Enforcer(parsed, adapter)
            everything = self._enforcer.enforce(_unknown(), _unknown(), _unknown())
            others = _allows_others(model)
        except InvalidConfigError:
            raise
        except Exception as cause:  # they have no base class of errors
            raise InvalidConfigError(f"casbin refuses the model or the policy: {cause}") from cause
        if others:
            raise InvalidConfigError(
                "the model allows everybody what a line allows somebody, or what no line allows: "
                "its matchers must compare r.sub with p.sub, and its effect must need a line"
            )
        if everything:
            raise InvalidConfigError("with this policy everybody may do everything")
        self._principals = frozenset(adapter.principals)

    def allows(self, principal: str, resource: str, act: str) -> bool:
        """See ``Policy.allows``. A matcher that fails allows nothing."""
        try:
            with self._lock:
                return self._enforcer.enforce(principal, resource, act) is True
        except Exception as error:  # noqa: BLE001 - casbin and its evaluator have no base class
            _log.warning("policy_matcher_failed", principal=principal, act=act, reason=str(error))
            return False

    def principals(self) -> frozenset[str]:
        """See ``Policy.principals``."""
        return self._principals


class CasbinFiles:
    """The files of a policy, loaded again when they change. One thread looks, any thread asks."""

    def __init__(self, model_file: str, policy_file: str) -> None:
        """Load the files.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        self._paths = (Path(model_file), Path(policy_file))
        self._changed = ChangedFiles(self._paths)
        self._policy = self._load()

    def policy(self) -> CasbinPolicy:
        """Return the policy that counts now; after a change it is another object."""
        return self._policy

    def look(self, *, at_once: bool) -> None:
        """See ``Watched.look``. Files that cannot be used change nothing."""
        if not self._changed.ready(at_once=at_once):
            return
        files = [str(one) for one in self._paths]
        try:
            self._policy = self._load()
        except InvalidConfigError as error:
            if not self._changed.repeats:
                _log.warning("policy_kept", files=files, reason=error.message)
            return
        self._changed.taken()
        _log.info("policy_read", files=files)

    def _load(self) -> CasbinPolicy:
        model, lines = (_text(one) for one in self._paths)
        try:
            return CasbinPolicy(model, lines)
        except InvalidConfigError as error:
            names = " and ".join(str(one) for one in self._paths)
            raise InvalidConfigError(f"{names}: {error.message}") from error


class _Lines(Adapter):  # type: ignore[misc]  # casbin has no types
    """Gives the lines of a policy to casbin, which would skip those that it does not know."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.principals: set[str] = set()

    def load_policy(self, model: casbin.Model) -> None:
        """Add each line to the model, or raise InvalidConfigError."""
        lines = [line.strip() for line in self._text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if not lines:
            raise InvalidConfigError("the policy has no line, so nobody could do anything")
        if len(lines) > _LINES_MAX:
            raise InvalidConfigError(f"the policy has more than {_LINES_MAX} lines")
        for line in lines:
            kind = line.partition(",")[0].strip()
            rules = model.model.get(kind[:1], {}).get(kind) if kind[:1] in ("p", "g") else None
            if rules is None:
                raise InvalidConfigError(f"the model does not define {kind[:16]!r} of {line!r}")
            if '"' in line:
                raise InvalidConfigError(f"quotes have no meaning in a policy: {line!r}")
            before = len(rules.policy)
            load_policy_line(line, model)
            fields = rules.policy[before]
            wanted = len(rules.tokens) if kind[0] == "p" else rules.value.count("_")
            if len(fields) != wanted or not all(fields):
                raise InvalidConfigError(f"a line {kind!r} has {wanted} fields, not so {line!r}")
            if kind[0] == "p":
                _require_effect(model, dict(zip(rules.tokens, fields, strict=True)), line)
            self.principals.add(fields[0])


def _require_known(model: casbin.Model) -> None:
    """Refuse models of other questions, and those that allow what no line names."""
    try:
        found = {key: model.model[key][key] for key in ("r", "p", "e", "m")}
    except KeyError as cause:
        raise InvalidConfigError(
            "the model needs request_definition, policy_definition, policy_effect and matchers"
        ) from cause
    if len(found["r"].tokens) != 3:
        raise InvalidConfigError("the request of the model must be of subject, object and action")
    if found["e"].value == _ALLOWS_BY_DEFAULT:
        raise InvalidConfigError(
            "the effect of the model allows what no line denies; take one that allows what a line "
            "allows, such as some(where (p.eft == allow))"
        )


def _require_effect(model: casbin.Model, fields: dict[str, str], line: str) -> None:
    """Refuse a line whose effect casbin would ignore: a denial that is none."""
    effects = [one for token, one in fields.items() if token.endswith("_eft")]
    if any(one not in _EFFECTS for one in effects):
        raise InvalidConfigError(f"the effect of a line is allow or deny, not so {line!r}")
    if "deny" in effects and model.model["e"]["e"].value == _SEES_NO_DENY:
        raise InvalidConfigError(
            f"the effect of the model looks at no denial, so this line would deny nothing: {line!r}"
        )


def _unknown() -> str:
    """Return a name that no line has, and in which no matcher sees a pattern."""
    return f"x{secrets.token_hex(16)}"


def _allows_others(model: str) -> bool:
    """Tell whether a policy of one line, about one subject, allows others something.

    The line is made here: a line of the site may say on purpose that everybody may do something.
    """
    parsed = casbin.Enforcer.new_model(text=model)
    subject, thing, act = (_unknown() for _ in range(3))
    named = {"sub": subject, "obj": thing, "act": act, "eft": "allow", "priority": "1"}
    tokens = (one.removeprefix("p_") for one in parsed.model["p"]["p"].tokens)
    line = [named.get(one, _FALSE) for one in tokens]
    enforcer = casbin.Enforcer(parsed, _Lines(", ".join(["p", *line])))
    rests = ((thing, act), (thing, _unknown()), (_unknown(), act), (_unknown(), _unknown()))
    return any(enforcer.enforce(_unknown(), *rest) for rest in rests)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = file.read(_FILE_BYTES_MAX + 1)
        if len(found) > _FILE_BYTES_MAX:
            raise InvalidConfigError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
        return found.decode()
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidConfigError(f"cannot read {path}: {cause}") from cause
