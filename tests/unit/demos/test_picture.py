"""The picture is drawn from whatever there is, without a display."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from flexo_demos.elastic.measure import Resize
from flexo_demos.elastic.picture import Scene, draw
from flexo_demos.elastic.queue import Holdings

pytestmark = pytest.mark.thorough

SCENE = Scene(
    began_at=1000.0,
    gpus=9,
    holdings=Holdings(
        at=(1000.0, 1010.0, 1030.0, 1035.0, 1060.0),
        base=(0, 1, 1, 1, 0),
        satellites=(0, 3, 0, 2, 0),
        rigid=(0, 0, 6, 6, 0),
    ),
    loss=tuple((1000.0 + step, 2.0 / (1 + step)) for step in range(60)),
    resizes=(Resize(before=1, after=4, last_step=9, at=1010.0, pause_s=0.4, clean=True),),
    rigid_submitted_at=1027.0,
    rigid_started_at=1030.5,
)


@pytest.mark.parametrize(
    "scene",
    [
        SCENE,
        replace(SCENE, rigid_started_at=None),
        replace(SCENE, rigid_submitted_at=None, rigid_started_at=None, resizes=()),
    ],
    ids=["whole", "rigid job never started", "no rigid job"],
)
def test_a_picture_is_drawn_of_every_scene(scene: Scene, tmp_path: Path) -> None:
    draw(scene, tmp_path / "demo.png")
    height, width = imread(tmp_path / "demo.png").shape[:2]
    assert (width, height) == (1300, 780)


def test_the_rigid_jobs_area_is_in_the_picture_only_if_it_ran(tmp_path: Path) -> None:
    def orange_share(scene: Scene) -> float:
        draw(scene, tmp_path / "demo.png")
        pixels = imread(tmp_path / "demo.png")[..., :3]
        return float((abs(pixels - (0xE0 / 255, 0x8A / 255, 0x3C / 255)) < 0.01).all(axis=-1).mean())

    idle = replace(SCENE.holdings, rigid=(0, 0, 0, 0, 0))
    assert orange_share(SCENE) > 0.05
    assert orange_share(replace(SCENE, holdings=idle)) < 0.01


def test_the_picture_ends_soon_after_the_last_event_however_long_training_goes_on(tmp_path: Path) -> None:
    def orange_columns(ends_at: float) -> int:
        held = replace(SCENE.holdings, at=(*SCENE.holdings.at[:-1], ends_at))
        held = replace(held, rigid=(0, 0, 6, 0, 0))
        draw(replace(SCENE, holdings=held), tmp_path / "demo.png")
        pixels = imread(tmp_path / "demo.png")[..., :3]
        orange = (abs(pixels - (0xE0 / 255, 0x8A / 255, 0x3C / 255)) < 0.01).all(axis=-1)
        return int(orange[200:].any(axis=0).sum())

    assert orange_columns(1060.0) == orange_columns(1600.0) > 50
