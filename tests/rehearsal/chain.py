"""A second verifier of the audit log, written from docs/reference alone. Pure.

Each line is JSON without spaces; ``hash`` is SHA-256 of the line without ``hash``, ``prev`` that of the line before.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final

END: Final = b'"}\n'
MARK: Final = b',"hash":"sha256:'


def violations(lines: Sequence[bytes]) -> Iterator[str]:
    """Say what is wrong with a log whose first records may have been pruned."""
    previous: tuple[int, str] | None = None
    for line in lines:
        body, mark, rest = line.rpartition(MARK)
        if not mark or not rest.endswith(END):
            yield f"audit log: a line without a hash at its end: {line[:60]!r}"
            return
        record = json.loads(line)
        digest = hashlib.sha256(body + b"}").hexdigest()
        if rest != digest.encode() + END:
            yield f"audit log: record {record['seq']} was changed"
        if previous is not None and (record["seq"], record["prev"]) != (previous[0] + 1, previous[1]):
            yield f"audit log: record {record['seq']} does not follow record {previous[0]}"
        previous = record["seq"], f"sha256:{digest}"


def lost(before: Sequence[bytes], now: Sequence[bytes]) -> Iterator[str]:
    """Name acknowledged records that are there no more."""
    here = frozenset(now)
    for line in before:
        if line not in here:
            yield f"audit log: record {json.loads(line)['seq']} is lost"
