"""One snapshot for all who look: when pages hear of changes, and what flexod is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from flexod_double import FlexodDouble, client_of, serving
from starlette.responses import Response, StreamingResponse

from flexo_web import updates
from flexo_web.feed import Client, Feed
from flexo_web.harvest import Harvest
from flexo_web.idle import IdleLedger
from flexo_web.steering import Steering
from flexo_web.tokens import Viewer
from flexo_web.updates import STREAMS_OF_A_USER, Updates
from flexo_web.views import NOW, Address, Views, of_job

ADA = Viewer(1, "ada")
WITHIN_S = 30.0


@dataclass
class World:
    flexod: FlexodDouble
    feed: Feed
    views: Views
    updates: Updates

    held: list[StreamingResponse] = field(default_factory=list)
    """Of the pages that are open: a stream that nobody holds does not count."""

    async def open(self, address: Address = NOW, viewer: Viewer = ADA) -> AsyncIterator[str]:
        """An open page of `viewer`, which has heard of the page's first content."""
        response = self.updates.stream(address, viewer, lambda: True)
        assert isinstance(response, StreamingResponse)
        self.held.append(response)
        lines = response.body_iterator.__aiter__()
        await anext(lines)
        return lines

    async def text(self) -> str:
        content = await self.views.content(NOW, self.feed.now, ADA)
        return content.banners + content.main


def played(story: Callable[[World], Awaitable[None]]) -> None:
    """Run `story` beside a feed that takes a snapshot every 20 ms."""

    @asynccontextmanager
    async def world() -> AsyncIterator[World]:
        flexod = FlexodDouble()
        with serving(flexod) as address:
            feed = Feed(Client(lambda: client_of(address)), watched_s=0.02)
            client = Client(lambda: client_of(address))
            views = Views(client, Harvest(client), IdleLedger(), Steering(client))
            taking = asyncio.create_task(feed.run())
            await feed.after(0)
            try:
                yield World(flexod, feed, views, Updates(feed, views))
            finally:
                taking.cancel()
                with suppress(asyncio.CancelledError):
                    await taking

    async def play() -> None:
        async with asyncio.timeout(WITHIN_S), world() as made:
            await story(made)

    asyncio.run(play())


def test_an_open_page_hears_of_a_resize_and_not_of_a_snapshot_that_is_like_the_one_before() -> None:
    async def story(world: World) -> None:
        lines = await world.open()
        number = world.feed.now.number
        heard = asyncio.ensure_future(anext(lines))
        await world.feed.after(number + 5)
        assert not heard.done()
        world.flexod.jobs[0].granted = 6
        assert "event: changed" in await heard
        assert "4 train, 6 are granted" in await world.text()

    played(story)


def test_an_open_page_hears_a_sign_of_life_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "SIGN_OF_LIFE_S", 0.1)

    async def story(world: World) -> None:
        lines = await world.open()
        assert (await anext(lines)).startswith(":")
        assert (await anext(lines)).startswith(":")

    played(story)


def test_fifty_open_pages_ask_flexod_no_more_than_one() -> None:
    async def story(world: World) -> None:
        opened = [await world.open(viewer=Viewer(uid, f"user{uid}")) for uid in range(50)]
        asked, number = world.flexod.asked["ListJobs"], world.feed.now.number
        await world.feed.after(number + 10)
        taken = world.feed.now.number - number
        assert len(opened) == 50
        assert world.flexod.asked["ListJobs"] - asked <= taken + 1

    played(story)


def test_all_viewers_of_a_job_share_one_explanation() -> None:
    async def story(world: World) -> None:
        pages = (world.open(of_job(17), Viewer(uid, "x")) for uid in range(20))
        assert len(await asyncio.gather(*pages)) == 20
        assert world.flexod.asked["ExplainJob"] <= 2

    played(story)


def test_while_flexod_is_away_the_last_snapshot_stays_with_the_time_and_it_recovers() -> None:
    async def story(world: World) -> None:
        lines = await world.open()
        world.flexod.present = False
        await anext(lines)
        since = world.feed.now.away
        assert since is not None
        text = await world.text()
        assert "flexod does not answer since" in text
        assert "gone for a while" in text
        assert 'id="job-17"' in text
        await world.feed.after(world.feed.now.number + 2)
        assert world.feed.now.away is not None
        assert world.feed.now.away.since_at == since.since_at
        world.flexod.present = True
        await anext(lines)
        assert "does not answer" not in await world.text()

    played(story)


def test_a_user_s_pages_beyond_the_limit_are_refused_and_others_are_not() -> None:
    async def story(world: World) -> None:
        for _ in range(STREAMS_OF_A_USER):
            await world.open()
        assert world.updates.stream(NOW, ADA, lambda: True).status_code == 429
        await world.open(viewer=Viewer(2, "bob"))
        world.held.pop(0)
        await world.open()

    played(story)


def test_streams_of_all_users_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "STREAMS", 3)

    async def story(world: World) -> None:
        asked = [world.updates.stream(NOW, Viewer(uid, "x"), lambda: True) for uid in range(5)]
        assert [answer.status_code for answer in asked] == [200, 200, 200, 429, 429]

    played(story)


def test_streams_count_before_anything_of_them_is_sent_and_until_they_end_or_are_dropped() -> None:
    async def story(world: World) -> None:
        def ask() -> Response:
            return world.updates.stream(NOW, ADA, lambda: True)

        asked = [ask() for _ in range(50)]  # nothing is sent yet
        opened = [answer for answer in asked if answer.status_code == 200]
        assert len(opened) == STREAMS_OF_A_USER
        del asked
        opened.pop()  # nobody ever sends it
        await ended(opened.pop(), asyncio.sleep(0))  # the browser has hung up
        with pytest.raises(OSError, match="broken"):
            await ended(opened.pop(), broken())
        assert [ask().status_code for _ in range(1)] == [200]
        again = [ask() for _ in range(10)]
        assert [answer.status_code for answer in again].count(200) == 3

    async def broken() -> None:
        raise OSError("broken")

    async def ended(response: Response, sent: Awaitable[None]) -> None:
        """Send a response until `sent` is over, and hang up."""
        sending = asyncio.ensure_future(sent)

        async def receive() -> dict[str, str]:
            await asyncio.wait([sending])
            return {"type": "http.disconnect"}

        async def send(_: object) -> None:
            await sending

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET"}
        await response(scope, receive, send)

    played(story)


def test_a_stream_ends_with_its_session() -> None:
    async def story(world: World) -> None:
        inside = True
        response = world.updates.stream(NOW, ADA, lambda: inside)
        assert isinstance(response, StreamingResponse)
        lines = response.body_iterator.__aiter__()
        await anext(lines)
        inside = False
        assert [line async for line in lines] == []

    played(story)


def test_who_opens_a_page_after_a_pause_sees_what_is_so_now() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(0.2)
        asked = world.flexod.asked["ListJobs"]
        world.flexod.jobs[0].granted = 6
        snapshot = await world.feed.fresh()
        assert snapshot.picture is not None
        assert snapshot.picture.jobs.jobs[0].granted == 6
        assert world.flexod.asked["ListJobs"] == asked + 1

    played(story)


def test_flexod_is_asked_seldom_while_nobody_looks_and_at_once_when_somebody_does() -> None:
    async def story(world: World) -> None:
        number = world.feed.now.number
        await asyncio.sleep(0.2)
        assert world.feed.now.number <= number + 1
        lines = await world.open()
        await world.feed.after(world.feed.now.number + 3)
        assert lines

    played(story)
