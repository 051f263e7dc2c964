"""A flexo-web in the test's own process, and browsers of users who have signed in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flexod_double import FlexodDouble, SayingWho, client_of, serving
from signed_in import URL, Browser, until
from starlette.testclient import TestClient

from flexo_protos.web_login import purpose
from flexo_web.app import Site


@pytest.fixture
def flexod() -> FlexodDouble:
    return FlexodDouble()


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """The folder of what-if reports."""
    return tmp_path


@pytest.fixture
def site(flexod: FlexodDouble, reports: Path) -> Iterator[TestClient]:
    """A visitor who has not signed in."""
    with serving(flexod) as address:
        made = Site(lambda: client_of(address), SayingWho(), URL, reports=reports)
        with TestClient(made.app(), base_url=URL, follow_redirects=False) as visitor:
            yield visitor


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Browser:
    """Signs in with a credential of `uid`. Returns the browser once flexod has been seen.

    The site begins with the first sign-in, so that it has never seen a flexod that the test has not
    finished yet.
    """

    def sign_in(uid: int = 0) -> TestClient:
        site: TestClient = request.getfixturevalue("site")
        said = site.post("/links", headers={"flexo-munge": f"{uid} {purpose(URL)}"}).json()
        entered = site.post(said["link"], headers={"origin": URL})
        assert entered.status_code == 303
        until(lambda: "has not answered yet" not in site.get("/").text)
        return site

    return sign_in
