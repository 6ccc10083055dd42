"""Patterns as the original has them: ECMAScript's, as C++ reads them."""

from __future__ import annotations

import re

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "d": "0-9",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "s": r"\s",
    "space": r"\s",
    "upper": "A-Z",
    "w": r"\w",
    "xdigit": "0-9A-Fa-f",
}
_NAMED = re.compile(r"\[:(\w*):\]")
# What stands for itself, or is a set of characters.
_PLAIN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
# A group that only Python's patterns have, or a repetition that does not end, which Python takes for itself.
_OTHERS = re.compile(r"\(\?(?![:=!])|\{(?!\d+(?:,\d*)?\})")


def searching(pattern: str) -> re.Pattern[str]:
    """What finds it. `re.error` where the original refuses it too."""

    def named(found: re.Match[str]) -> str:
        if found[1] not in _CLASSES:
            raise re.error(f"no class of characters is called {found[1]}")
        return _CLASSES[found[1]]

    known = _NAMED.sub(named, pattern)
    if _OTHERS.search(_PLAIN.sub("", known)):
        raise re.error("a group or a repetition that these patterns do not have")
    return re.compile(known, re.ASCII)
