"""Asks a provider of OpenID Connect who a visitor is: the authorization code flow with PKCE.

Nothing is kept here between the two steps. The visitor's cookie has a random text, from which this process
derives the flow's state, nonce and PKCE verifier by a key of its own. So a flow ends in the browser in which
it began, and visitors who never come back cost no memory.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final

from flexo_protos.web_login import LOOPBACK

FLOW_S: Final = 600.0
"""How long a visitor may take at the provider."""
CALLBACK_PATH: Final = "/openid/callback"
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
"""Signatures that need the provider's own key. With HS256 and none, others could sign."""
_REQUIRED: Final = ("exp", "iat", "iss", "aud", "sub", "nonce")
_SKEW_S: Final = 60
_METADATA_S: Final = 3600.0
"""How long the provider's description is reused."""
_KEYS_S: Final = 10.0
"""The least time between two requests for the provider's keys: a token may name a key that is new."""
_WITHIN_S: Final = 10.0
_MOST_BYTES: Final = 262_144


class NotSignedIn(Exception):
    """The provider does not say who the visitor is; the message says why."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, and flexo-web as its client."""

    issuer: str
    client_id: str
    secret: str = field(default="", repr=False)
    """The client's password; "": it has none, and PKCE alone protects the code."""
    claim: str = "preferred_username"
    """The claim that has the account's name."""

    def __post_init__(self) -> None:
        """Raises ValueError for an issuer that is no address with TLS, and without a client."""
        _checked(self.issuer, "the issuer")
        if not self.client_id or not self.claim:
            raise ValueError("a provider of OpenID Connect needs the id of a client, and the name of a claim")


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow that begins: where the visitor goes, and what the visitor's cookie keeps."""

    address: str
    cookie: str


class OpenId:
    """The client of one provider. Its methods block, and any thread may call them."""

    def __init__(self, provider: Provider, url: str, clock: Callable[[], float] = time.time) -> None:
        """`url`: under which people open flexo-web."""
        self._provider = provider
        self._callback = url + CALLBACK_PATH
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._metadata: tuple[dict[str, Any], float] = ({}, float("-inf"))
        self._keys: tuple[list[dict[str, Any]], float] = ([], float("-inf"))

    def begin(self) -> Flow:
        """A new flow. Raises NotSignedIn if the provider cannot be used."""
        cookie = f"{int(self._clock())}.{secrets.token_urlsafe(32)}"
        challenge = _text(hashlib.sha256(self._of(cookie, "verifier").encode()).digest())
        question = {
            "response_type": "code",
            "scope": "openid profile",
            "client_id": self._provider.client_id,
            "redirect_uri": self._callback,
            "state": self._of(cookie, "state"),
            "nonce": self._of(cookie, "nonce"),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._endpoint("authorization_endpoint")
        joint = "&" if urllib.parse.urlsplit(address).query else "?"
        return Flow(f"{address}{joint}{urllib.parse.urlencode(question)}", cookie)

    def finish(self, cookie: str, state: str, code: str) -> str:
        """The name of the account that the provider says. Raises NotSignedIn."""
        began, _, secret = cookie.partition(".")
        if not secret or not began.isdecimal() or not 0 <= self._clock() - int(began[:12]) <= FLOW_S:
            raise NotSignedIn("this sign-in did not begin in this browser, or it took too long: begin again")
        if not hmac.compare_digest(state.encode(), self._of(cookie, "state").encode()):
            raise NotSignedIn("this answer of the provider belongs to another sign-in: begin again")
        claims = self._verified(self._token(cookie, code))
        nonce = claims["nonce"]
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode(), self._of(cookie, "nonce").encode()
        ):
            raise NotSignedIn("the provider's token was made for another sign-in")
        name = claims.get(self._provider.claim)
        if not isinstance(name, str):
            raise NotSignedIn(f"the provider's token has no claim '{self._provider.claim}'")
        return name

    def _of(self, cookie: str, what: str) -> str:
        return _text(hmac.new(self._key, f"{what} {cookie}".encode(), hashlib.sha256).digest())

    def _token(self, cookie: str, code: str) -> str:
        """The identity token for a code."""
        said = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": self._provider.client_id,
            "code_verifier": self._of(cookie, "verifier"),
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self._provider.secret:
            words = (self._provider.client_id, self._provider.secret)
            pair = ":".join(urllib.parse.quote(word, safe="") for word in words)
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        endpoint = self._endpoint("token_endpoint")
        answer = _asked(endpoint, urllib.parse.urlencode(said).encode(), headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise NotSignedIn("the provider gave no identity token for the code")
        return token

    def _verified(self, token: str) -> Mapping[str, Any]:
        """The claims of an identity token for flexo-web."""
        import jwt  # the extra `openid`

        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in _ALGORITHMS:
                allowed = ", ".join(_ALGORITHMS)
                raise NotSignedIn(f"the token is signed by {header.get('alg')!a}: {allowed} are allowed")
            claims: dict[str, Any] = jwt.decode(
                token,
                jwt.PyJWK.from_dict(self._key_of(header), header["alg"]).key,
                algorithms=[header["alg"]],
                audience=self._provider.client_id,
                issuer=self._provider.issuer,
                leeway=_SKEW_S,
                options={"require": list(_REQUIRED)},
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            raise NotSignedIn(f"the provider's token is not good: {error}") from error
        if claims.get("azp", self._provider.client_id) != self._provider.client_id:
            raise NotSignedIn("the provider's token was made for another client")
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and "azp" not in claims:
            raise NotSignedIn("the provider's token was made for several clients, and says not for which")
        return claims

    def _key_of(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """The provider's key that a token's header names. Raises NotSignedIn."""
        for may_ask in (False, True):
            known, asked_at = self._keys
            if may_ask and self._clock() - asked_at >= _KEYS_S:
                found = _asked(self._endpoint("jwks_uri")).get("keys")
                known = [key for key in found if isinstance(key, dict)] if isinstance(found, list) else []
                self._keys = known, self._clock()
            signing = [key for key in known if key.get("use", "sig") == "sig"]
            fitting = [key for key in signing if key.get("kid") == header.get("kid")]
            if len(fitting) == 1:
                return fitting[0]
        raise NotSignedIn("the provider has no one key of the name that its token gives")

    def _endpoint(self, name: str) -> str:
        """An address of the provider's description of itself. Raises NotSignedIn."""
        metadata, asked_at = self._metadata
        if self._clock() - asked_at >= _METADATA_S:
            metadata = _asked(f"{self._provider.issuer.rstrip('/')}/.well-known/openid-configuration")
            if metadata.get("issuer") != self._provider.issuer:
                raise NotSignedIn(f"what answers at {self._provider.issuer} says that it is another issuer")
            self._metadata = metadata, self._clock()
        try:
            return _checked(str(metadata.get(name, "")), f"{name} of the provider")
        except ValueError as error:
            raise NotSignedIn(str(error)) from error


def _checked(address: str, what: str) -> str:
    """`address`, if it is one with TLS, or of this host. Raises ValueError."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        allowed = "https://... is allowed, and http on a loopback address"
        raise ValueError(f"{what} is {address[:200]!a}: {allowed}")
    return address


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _asked(
    address: str, form: bytes | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object that an address of the provider answers with. Raises NotSignedIn."""
    request = urllib.request.Request(address, form, dict(headers or {}))
    opener = urllib.request.build_opener(_NoRedirects())
    try:
        with opener.open(request, timeout=_WITHIN_S) as answer:
            said = json.loads(answer.read(_MOST_BYTES))
    except (OSError, HTTPException, ValueError) as error:
        with_status = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        raise NotSignedIn(f"the provider does not answer as it must at {address}: {with_status}") from error
    if not isinstance(said, dict):
        raise NotSignedIn(f"the provider's answer at {address} is no JSON object")
    return said


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        """Follow no redirect: what is sent is for this address."""
