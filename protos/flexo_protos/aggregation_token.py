"""Tokens with which a job uses a pool Aggregator: flexod signs them, and the Aggregator checks them. Pure.

Each Aggregator has a key of its own, which only flexod and this Aggregator know. So a token is worth nothing
at another Aggregator. A token names the job, its user, the most memory that the job may take, and the time
at which it expires. The expiry concerns new connections only: a connection that stands outlives its token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

KEY_BYTES: Final = 32
"""The length of an Aggregator's key."""
MOST_QUOTA: Final = 1 << 50
"""The most bytes that a token may allow."""
LONGEST: Final = 512
"""The most characters of a token."""
_FORMAT: Final = "1"
_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z0-9._@+\\-]{1,128}[$]?", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)


class BadToken(Exception):
    """A token that an Aggregator refuses, or that cannot be signed; the message says why."""


@dataclass(frozen=True, slots=True)
class AggregationToken:
    """The content of a token."""

    job: str
    user: str
    quota: int
    """The most bytes of memory that the job's sums may take at this Aggregator: for each key, a buffer for
    each of its nodes, and one for the result."""
    expires_at: int
    """Seconds since the epoch."""


def sign(token: AggregationToken, key: bytes) -> str:
    """The text of a token for the Aggregator with this key. Raises BadToken if the content or the key is not
    allowed."""
    _check_key(key)
    text = ":".join((_FORMAT, token.job, token.user, str(token.quota), str(token.expires_at)))
    _content(text)
    return f"{text}:{_signature(text, key)}"


def check(text: str, key: bytes, now: float) -> AggregationToken:
    """The content of a token, once its signature and its time are checked. Raises BadToken.

    `key`: of this Aggregator. `now`: seconds since the epoch.
    """
    _check_key(key)
    if len(text) > LONGEST:
        raise BadToken(f"the token has {len(text)} characters; at most {LONGEST} are allowed")
    content, _, signature = text.rpartition(":")
    if not hmac.compare_digest(signature.encode(errors="replace"), _signature(content, key).encode()):
        raise BadToken("the token is not signed by flexod for this Aggregator: ask flexod for a new one")
    token = _content(content)
    if now >= token.expires_at:
        late = now - token.expires_at
        raise BadToken(f"the token of job {token.job} has expired {late:.0f} s ago: ask flexod for a new one")
    return token


def check_for(text: str, key: bytes, now: float, job: str) -> AggregationToken:
    """As `check`, and the token must be of this job. Raises BadToken."""
    token = check(text, key, now)
    if token.job != job:
        raise BadToken(f"the token is of job {token.job}, not of job {job[:64]!r}: each job uses its own")
    return token


def _content(text: str) -> AggregationToken:
    fields = text.split(":")
    if len(fields) != 5 or fields[0] != _FORMAT:
        raise BadToken(f"the token does not have the five fields of format {_FORMAT}")
    _, job, user, quota, expires_at = fields
    if _JOB.fullmatch(job) is None:
        raise BadToken(f"the token's job {job[:64]!r} does not match {_JOB.pattern}")
    if _USER.fullmatch(user) is None:
        raise BadToken(f"the token's user {user[:64]!r} does not match {_USER.pattern}")
    if _NUMBER.fullmatch(quota) is None or int(quota) > MOST_QUOTA:
        raise BadToken(f"the token's quota {quota[:20]!r} is not a number of bytes from 1 to {MOST_QUOTA}")
    if _NUMBER.fullmatch(expires_at) is None:
        raise BadToken(f"the token's expiry {expires_at[:20]!r} is not a number of seconds")
    return AggregationToken(job, user, int(quota), int(expires_at))


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise BadToken(f"the Aggregator's key has {len(key)} bytes; {KEY_BYTES} are required")


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode(errors="replace"), hashlib.sha256).hexdigest()
