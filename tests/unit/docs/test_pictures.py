"""Pictures of the architecture: files are what `make pictures` draws, and text stays within its box."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pictures
import pytest
from drawing import Box, DoesNotFit, Drawing
from written_pages import PAGES, ROOT, text_of

from flexo.model.elastic import SatelliteState

NAMES = sorted(pictures.drawings())


def boxes(name: str) -> list[Box]:
    return [thing for thing in pictures.drawings()[name].things if isinstance(thing, Box)]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_the_program_draws_and_a_page_shows_it(name: str) -> None:
    file = ROOT / "docs" / "images" / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == pictures.drawings()[name].svg(), "make pictures"
    assert any(f"images/{name}.svg)" in text_of(page) for page in PAGES)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_xml_says_what_it_shows_and_loads_nothing(name: str) -> None:
    svg = pictures.drawings()[name].svg()
    assert ElementTree.fromstring(svg).get("aria-label")
    assert not re.search(r"href|url\((?!#)|@import", svg)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_on_the_ground_and_lie_in_each_other_or_apart(name: str) -> None:
    drawing = pictures.drawings()[name]
    for box in boxes(name):
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= drawing.width
        assert box.y + box.height <= drawing.height
    outer = {"agent"}  # the leader is one of the agents, and stands in its box
    small = [box for box in boxes(name) if box.style != "room" and box.lines[0] not in outer]
    for one, other in combinations(small, 2):
        assert (
            one.x + one.width <= other.x
            or other.x + other.width <= one.x
            or one.y + one.height <= other.y
            or other.y + other.height <= one.y
        ), f"{one.lines} and {other.lines}"


def test_the_life_of_a_satellite_has_every_state_in_its_order() -> None:
    shown = [box.lines[0] for box in boxes("satellite") if box.x == 20]
    assert shown == [state.value for state in SatelliteState]


def test_text_that_is_wider_than_its_box_is_refused() -> None:
    drawing = Drawing(100, 100, "a picture", (Box(0, 0, 40, 40, ("much too wide",)),))
    with pytest.raises(DoesNotFit, match=r"'much too wide' takes more than 40 by 40"):
        drawing.svg()
