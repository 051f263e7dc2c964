"""`flexo web`: prints a link that lets its user into flexo-web's pages."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from flexo.words import duration
from flexo_cli.connection import Refusal, Unreachable
from flexo_cli.options import JsonOption
from flexo_cli.output import print_json, print_line, print_unbroken
from flexo_protos import web_login
from flexo_protos.credentials import METADATA_KEY, NotAuthentic, new_authenticator

_WITHIN_S: Final = 10.0
_MOST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Link:
    link: str
    user: str
    expires_in_s: float


def web(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help=f"flexo-web's URL; else ${web_login.URL_VARIABLE}, else {web_login.DEFAULT_URL}.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a link to flexo's web pages. It works once, within five minutes, and lets you in as yourself."""
    said = url or os.environ.get(web_login.URL_VARIABLE) or web_login.DEFAULT_URL
    try:
        found = _ask(web_login.checked(said))
    except (ValueError, NotAuthentic) as error:
        raise Refusal(str(error)) from error
    if as_json:
        print_json({"link": found.link, "user": found.user, "expires_in_s": found.expires_in_s})
        return
    print_unbroken(found.link)
    print_line(f"It works once, within {duration(found.expires_in_s)}, and lets you in as {found.user}.")


def _ask(url: str) -> _Link:
    """A link from the flexo-web at `url`. Raises Refusal, Unreachable, NotAuthentic and ValueError."""
    proof = new_authenticator().credential(web_login.purpose(url))
    request = urllib.request.Request(
        f"{url}{web_login.LINKS_PATH}", method="POST", headers={METADATA_KEY: proof}
    )
    # no proxy of the site's, and no other host: the credential is for this flexo-web
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(request, timeout=_WITHIN_S) as answer:
            said = _parsed(answer.read(_MOST_BYTES), url)
    except urllib.error.HTTPError as error:
        with error:
            said = _parsed(error.read(_MOST_BYTES), url)
        why = said.get("error", f"status {error.code}")
        raise Refusal(f"flexo-web at {url} gave no link: {why}{_what_to_type(url, said)}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(
            f"flexo-web does not answer at {url}: {reason};"
            f" --url or ${web_login.URL_VARIABLE} names another one"
        ) from error
    try:
        return _Link(str(said["link"]), str(said["user"]), float(said["expires_in_s"]))
    except (KeyError, TypeError) as error:
        raise Unreachable(f"what answers at {url} is not flexo-web") from error


def _what_to_type(url: str, said: dict[str, Any]) -> str:
    """What to do about a refusal of the flexo-web at `url`, if the refusal tells."""
    try:
        own = web_login.checked(str(said.get("url", "")))
    except ValueError:
        return ""  # it is older
    if own != url:
        return f". Its URL is another one. Type: flexo web --url {own}"
    if urlsplit(own).hostname in web_login.LOOPBACK:
        return ". Run the command on the host of flexo-web"
    return ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        """Follow no redirect."""


def _parsed(text: bytes, url: str) -> dict[str, Any]:
    """The JSON object in an answer. Raises Unreachable."""
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise Unreachable(f"what answers at {url} is not flexo-web")
    return said
