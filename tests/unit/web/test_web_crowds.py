"""A viewer who asks for everything at once holds nobody else up."""

from __future__ import annotations

import asyncio
import threading

import httpx2
from flexod_double import FlexodDouble, SayingWho, client_of, serving
from signed_in import URL

from flexo_protos.web_login import purpose
from flexo_web.app import Site


async def signed_in(application: object, uid: int) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(application)  # type: ignore[arg-type]
    browser = httpx2.AsyncClient(transport=transport, base_url=URL)
    said = await browser.post("/links", headers={"flexo-munge": f"{uid} {purpose(URL)}"})
    await browser.post(said.json()["link"], headers={"origin": URL})
    return browser


def test_a_viewer_with_too_many_requests_is_refused_and_another_viewer_is_answered() -> None:
    flexod = FlexodDouble()
    answers = threading.Event()
    flexod.before_explaining = answers.wait

    async def story() -> None:
        with serving(flexod) as address:
            application = Site(lambda: client_of(address), SayingWho(), URL).app()
            greedy, other = await signed_in(application, 1), await signed_in(application, 2)
            asked = [asyncio.create_task(greedy.get(f"/jobs/{number}")) for number in range(1, 30)]
            refused, _ = await asyncio.wait(asked, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in refused} == {429}
            assert (await other.get("/")).status_code == 200
            answers.set()
            statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
            assert statuses.count(429) == 21

    asyncio.run(story())
