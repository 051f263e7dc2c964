"""Checks that a text states certain facts: names, numbers, what is allowed. The wording is not checked."""

from __future__ import annotations

import re


def says(text: str, *facts: object) -> bool:
    """True if `text` has every fact, each as a whole name or number: 1 is not found in 10."""
    return all(re.search(rf"(?<![\w.]){re.escape(str(fact))}(?![\w])", text) for fact in facts)
