"""Example files of YARN's configuration: they are what flexo's settings say, and Hadoop can read them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from flexo_yarn.examples import EXAMPLES
from flexo_yarn.site_settings import as_example, as_xml

FOLDER = Path(__file__).resolve().parents[3] / "yarn_plugin"


def properties(text: str) -> dict[str, str]:
    return {str(each.findtext("name")): str(each.findtext("value")) for each in ElementTree.fromstring(text)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_file_has_every_setting_and_its_reason(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert text == as_example(EXAMPLES[name])  # else: python -m flexo_yarn.examples yarn_plugin
    assert properties(text) == {each.name: each.value for each in EXAMPLES[name]}
    assert text.count("<!--") == len(EXAMPLES[name])


def test_signs_of_xml_in_a_value_stay_text() -> None:
    assert properties(as_xml([("a", "<b> & 'c'")])) == {"a": "<b> & 'c'"}
