"""The power of a machine fails at any moment while its enforcer kills and while claims are prepared and undone."""

from pathlib import Path

import pytest

from tests.safety.power import disk
from tests.safety.power.__main__ import DISKS, cut_power, main
from tests.safety.power.troubles import KINDS
from tests.support.extent import figure, trials
from tests.testbed.vm.need import require_vm

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(4 * 3600)]
CUTS = trials(len(DISKS), 200)
CONTROL = trials(1, 5)


@pytest.fixture(autouse=True)
def _vm() -> None:
    require_vm()


def test_no_power_cut_loses_what_was_acknowledged_or_leaves_a_signal_without_its_intent() -> None:
    found = main([str(CUTS)])
    assert found["broken"] == []
    assert found["cuts"] == CUTS
    assert found["settled"] > CUTS / 2, "enforcers took up their work again, without a person"
    assert found["signals"] > CUTS
    assert found["claims"] > CUTS
    assert found["resumed"] > CUTS / 10, "and again after a trouble was over"
    what = f"0 in {CUTS} cuts, {found['signals']:,} signals"
    figure("40", "power cuts: signals without a durable INTENT", what)
    torn = f"{found.get('torn', 0)} torn lines recorded"
    what = f"0 of {found['records']:,} records and {found['claims']:,} claims; {torn}"
    befell = ", ".join(f"{kind} {found.get(kind, 0)}" for kind in KINDS)
    figure("40", "power cuts: what befell disk and clock before them", befell)
    figure("40", "power cuts: acknowledged records or claims lost", what)


def test_an_enforcer_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    root = disk.root(tmp_path)
    found = [cut_power(root, 2, seed, file_system=DISKS[seed % 2][0], syncs=False) for seed in range(CONTROL)]
    seen = [ledger for ledger in found if any("are lost" in each for each in ledger.broken)]
    assert len(seen) > CONTROL / 2
    figure("40", "power cuts: the same with an enforcer that does not sync (the control)", f"{len(seen)} of {CONTROL}")
