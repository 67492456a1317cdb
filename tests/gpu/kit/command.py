"""The kit's command line, once everything can be imported."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.fakes.gpu.build import NoCompilerError
from tests.gpu.kit import fake, real, report, runner
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.child import CHILDREN
from tests.gpu.kit.doctor import examine
from tests.gpu.kit.order import worth
from tests.gpu.kit.registry import Experiment, experiments, named
from tests.gpu.kit.result import Result, Trouble
from tests.gpu.kit.setup import ROOT, Setup
from tests.gpu.kit.store import TAR, OtherMachineError, Store

BUDGET_S: Final = 540.0
OUT: Final = ROOT / ".build" / "gpu"
NO_MPS: Final = "none"
GROUPS: Final = ("core", "bench")
WORDS: Final = ("doctor", *GROUPS, "all", "report")


def main(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Do what the command line says; errors are sentences."""
    if argv[:1] and argv[0] in CHILDREN:
        return CHILDREN[argv[0]](*argv[1:])
    options = _options(argv, parser)
    try:
        if options.what == "report":
            return _report(options)
        with runner.work_folder() as work:
            return _on_a_machine(options, work)
    except (NoCompilerError, OtherMachineError, runner.ChildFailedError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2


def _options(argv: Sequence[str], parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [each.name.lower() for each in experiments()]
    add = parser.add_argument
    add("what", type=str.lower, choices=[*WORDS, *names], metavar=f"{{{','.join(WORDS)},h1,...}}")
    add("--backend", choices=("real", "fake"), default="real", help="what to measure (default: real)")
    add("--gpu", default="", help="UUID or NVML's index (default: the first without MIG)")
    add("--only", default="", help="with a group: these experiments of it, comma-separated")
    add("--allow-mode-change", action="store_true", help="experiments may set EXCLUSIVE_PROCESS, and set it back")
    add(
        "--mps-control",
        default="",
        metavar="PATH",
        help="nvidia-cuda-mps-control of the driver's own version; none: go without MPS",
    )
    add("--mps-server", default="", metavar="PATH", help="nvidia-cuda-mps-server, likewise")
    add("--out", type=Path, default=None, metavar="DIR", help="folder of the run (default: .build/gpu, or gpu-fake)")
    add("--tar", type=Path, default=None, metavar="FILE", help=f"the one result (default: {TAR} in the folder)")
    add(
        "--again",
        action="store_true",
        help="start afresh; without it `all` skips what committed runs of this driver say",
    )
    add("--budget", type=float, default=None, metavar="S", help=f"seconds for all (core, bench: {BUDGET_S:g})")
    add("--limit", type=float, default=None, metavar="S", help="seconds for each at most")
    add("--world", action="append", default=[], metavar="KEY=VALUE", help="fake: how the simulated machine behaves")
    add("--machine", default=fake.MACHINE, help="fake: which machine of tests/fakes/gpu/machines")
    add("--check", action="store_true", help="report: only say whether docs/design/hardware.md is what it should be")
    return parser.parse_args(argv)


def _on_a_machine(options: argparse.Namespace, work: Path) -> int:
    setup, facts = runner.look(_setup(options, work))
    if options.what == "doctor":
        text, able = examine(setup, facts, experiments())
        print(text)
        return 0 if able else 1
    folder = options.out or OUT.with_name("gpu" if options.backend == "real" else "gpu-fake")
    store = Store(folder.resolve(), (options.tar or folder / TAR).resolve())
    results = _run(options, facts, runner.Runner(setup, facts, store, work))
    print(f"\n{store.tar}")
    return 1 if any(each.trouble is not Trouble.NONE for each in results) or _blind(facts) else 0


def _run(options: argparse.Namespace, facts: Facts, run: runner.Runner) -> list[Result]:
    budget = options.budget if options.budget is not None else BUDGET_S if options.what in GROUPS else None
    known = experiments()
    if options.what == "all" and options.backend == "real" and not options.again:
        known = tuple(worth(known, report.committed(), facts.driver))
    chosen = [each for each in known if _wanted(each, options)]
    return run.run(runner.Plan(experiments=chosen, budget_s=budget, limit_s=options.limit, again=options.again))


def _wanted(each: Experiment, options: argparse.Namespace) -> bool:
    if options.what in {"all", *GROUPS}:
        only = {named(name).name for name in options.only.split(",") if name}
        return options.what in {"all", each.group} and (not only or each.name in only)
    return each.name == named(options.what).name


def _blind(facts: Facts) -> bool:
    return "nvml" in facts.missing


def _setup(options: argparse.Namespace, work: Path) -> Setup:
    if options.backend == "fake":
        world = dict(each.split("=", 1) for each in options.world)
        found = fake.prepare(work, world, machine=options.machine, allow_mode_change=options.allow_mode_change)
    else:
        found = real.prepare(
            gpu=options.gpu, mps_control=options.mps_control.removeprefix(NO_MPS), mps_server=options.mps_server,
            allow_mode_change=options.allow_mode_change,
        )  # fmt: skip
    if options.mps_control == NO_MPS:
        return replace(found, mps_control="", mps_server="", mps_problem="MPS was left out (--mps-control none)")
    return found


def _report(options: argparse.Namespace) -> int:
    text = report.document(report.committed(), experiments())
    if not options.check:
        report.DOCUMENT.write_text(text)
        return 0
    if report.DOCUMENT.read_text() == text:
        return 0
    print(
        "docs/design/hardware.md is not what the committed results say; run: python tests/gpu/run.py report",
        file=sys.stderr,
    )
    return 1
