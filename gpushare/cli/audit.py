"""``gpu-share audit``: read a node's kill log, and find out whether anybody changed it.

Exit codes: 0 the log holds, 1 it does not, 2 wrong use or nothing there to read.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from enforcer.audit import FOLDER, SUFFIX, lines_of, segments
from enforcer.record import Head, Kind, Verdict, read, verify
from gpushare.cli.terminal import Colour, Terminal, table
from gpushare.errors import ConfigError, RecordError

FINE: Final = 0
NOT_FINE: Final = 1
DEFAULT: Final = Path("/var/lib/gpu-share")
HEADERS: Final = ("SEQ", "TIME", "KIND", "POD", "CONTAINER", "GPU", "USED", "QUOTA", "RESULT", "PIDS")
_SHORT_GPU: Final = 12


def add_parser(verbs: Any) -> None:
    """Add ``audit show`` and ``audit verify``."""
    parser = verbs.add_parser("audit", help="show the kill log and verify its chain", description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="list the records")
    _add_log(show)
    show.add_argument("--pod", help="only records of pods of this name")
    show.add_argument("--namespace", "-n", help="only records of pods in this namespace")
    show.add_argument("--kind", type=str.upper, choices=[str(kind) for kind in Kind], help="only records of this kind")
    show.add_argument("-o", "--output", choices=["table", "json"], default="table", help="(%(default)s)")
    check = actions.add_parser("verify", help="check every record and the chain")
    _add_log(check)
    check.add_argument(
        "--anchor", metavar="SEQ:HASH", help="a record the log must still hold, as a pod's Event names it"
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    files = _files(args)
    return _verify(files, args.anchor) if args.action == "verify" else _show(files, args)


def _add_log(parser: Any) -> None:
    parser.add_argument("--state", type=Path, default=DEFAULT, help="the enforcer's state directory (%(default)s)")
    parser.add_argument("--log", type=Path, help="a folder of segments, or one segment, copied from elsewhere")


def _files(args: argparse.Namespace) -> list[Path]:
    """Find the segments.

    Raises:
        ConfigError: there is no log there.
    """
    folder: Path = args.log or args.state / FOLDER
    try:
        return [folder] if folder.is_file() else segments(folder)
    except OSError as error:
        raise ConfigError(f"no kill log in {folder}: {error.strerror}; name one with --state or --log") from error


def _lines(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        try:
            yield from lines_of(file)
        except OSError as error:
            raise ConfigError(f"{_printable(str(file))} cannot be read: {error.strerror}") from error


def _verify(files: Sequence[Path], anchor: str | None) -> int:
    verdict = verify(_lines(files), anchor=None if anchor is None else Head.parse(anchor))
    misnamed = None if verdict.line is not None else _misnamed(files)
    terminal = Terminal.of()
    if verdict.holds and misnamed is None:
        terminal.say(f"{terminal.paint('ok', Colour.GREEN)}: {verdict.records} records in {len(files)} segments hold")
        terminal.say(f"head {verdict.head}")
        return FINE
    where, problem = misnamed or (_where(files, verdict), verdict.problem)
    terminal.say(f"{terminal.paint('broken', Colour.RED)}: {where}: {problem}")
    terminal.say(f"the {verdict.records} records before it hold")
    return NOT_FINE


def _where(files: Sequence[Path], verdict: Verdict) -> str:
    """Name file and line of the first bad line."""
    number = verdict.line or 1
    for file in files:
        count = sum(1 for _ in islice(_lines([file]), number))
        if number <= count:
            return f"{_printable(file.name)}:{number}"
        number -= count
    return f"{_printable(files[-1].name)}: after its last line" if files else "empty log"


def _misnamed(files: Sequence[Path]) -> tuple[str, str] | None:
    """A segment is named after its first record."""
    for file in files:
        first = next(_lines([file]), b"")
        digits = file.name.removesuffix(SUFFIX).rpartition("-")[2]
        if first and digits.isdecimal() and int(digits) != read(first)["seq"]:
            return (
                f"{_printable(file.name)}:1",
                f"begins with record {read(first)['seq']}: the file was renamed or moved",
            )
    return None


def _show(files: Sequence[Path], args: argparse.Namespace) -> int:
    records, bad = [], 0
    for line in _lines(files):
        try:
            records.append(read(line))
        except RecordError:
            bad += 1
    wanted = [record for record in records if _wanted(record, args)]
    if args.output == "json":
        print(json.dumps(wanted, indent=2))
    else:
        print("\n".join(table(HEADERS, map(_row, wanted))))
    if bad:
        print(f"{bad} lines are no records; run 'gpu-share audit verify'", file=sys.stderr)
    return NOT_FINE if bad else FINE


def _wanted(record: dict[str, Any], args: argparse.Namespace) -> bool:
    pod = _pod(record)
    pairs = ((args.pod, pod.get("name")), (args.namespace, pod.get("namespace")), (args.kind, record["kind"]))
    return all(asked is None or asked == found for asked, found in pairs)


def _row(record: dict[str, Any]) -> list[object]:
    pod = _pod(record)
    name = "/".join(str(part) for part in (pod.get("namespace"), pod.get("name")) if part)
    row = [record["seq"], record["time"], record["kind"], name, record.get("container"), _gpu(record)]
    row += [_mib(record.get("usedMiB")), _mib(record.get("quotaMiB")), record.get("result"), _pids(record)]
    return [_printable(each) for each in row]


def _pod(record: dict[str, Any]) -> dict[str, Any]:
    """A chain that holds may still have been written by anybody: nothing is taken to have its shape."""
    pod = record.get("pod")
    return pod if isinstance(pod, dict) else {}


def _gpu(record: dict[str, Any]) -> str | None:
    gpu = record.get("gpu")
    return gpu[:_SHORT_GPU] if isinstance(gpu, str) else None


def _mib(amount: Any) -> str | None:
    return None if amount is None else f"{amount}Mi"


def _pids(record: dict[str, Any]) -> str:
    targets = record.get("targets")
    if not isinstance(targets, list):
        return ""
    return ",".join(str(target.get("pid")) for target in targets if isinstance(target, dict))


def _printable(value: object) -> object:
    """What others chose must not steer the reader's terminal."""
    return ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else value
