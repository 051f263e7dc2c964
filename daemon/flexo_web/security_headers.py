"""Headers of every answer: nothing from elsewhere is loaded, no inline script runs, nothing is kept."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
REPORT_POLICY: Final = "; ".join(
    ("sandbox", "default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", "frame-ancestors 'none'")
)
"""The policy of a document of the site's, which is no page of flexo-web's. The answer sets it."""
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer", a browser hides the Origin of a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """Middleware that adds these headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def add_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
                headers.update(_HEADERS)
            await send(message)

        await self._app(scope, receive, add_and_send if scope["type"] == "http" else send)
