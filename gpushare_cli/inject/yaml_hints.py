"""What to write instead of an annotation that YAML did not read as a string. Pure."""

import json

from gpushare.annotation_table import OF_NAMESPACES, of_pod


def no_string(key: str, value: object) -> str:
    """Say what to write instead of an annotation, of a pod or a namespace, that YAML did not read as a string."""
    row = of_pod(key) or OF_NAMESPACES.get(key)
    # An unknown key is refused next, by a message that lists the known ones.
    advice = "write one, in quotes" if row is None else f"write for example {_examples(row.type.examples)}"
    return f"{json.dumps(value):.40} is not a string, and annotations are strings; {advice}"


def _examples(words: tuple[str, ...]) -> str:
    """Write examples as YAML needs them: a number or a boolean in quotes."""
    if any(word.isdigit() or word in {"true", "false"} for word in words):
        return " or ".join(f'"{word}"' for word in words) + ", in quotes"
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
