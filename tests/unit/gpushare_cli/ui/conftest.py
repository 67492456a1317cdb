from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.contract import AUDIT_HEAD
from tests.unit.gpushare_cli.audit_logs import write
from tests.unit.gpushare_cli.ui.fleets import MADE, Logged, fleet


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Logged:
    cluster = Logged()
    cluster.__dict__.update(fleet().__dict__)
    cluster.folders = {name: tmp_path / name for name in ("one", "two")}
    for name, folder in cluster.folders.items():
        head = write(folder, node=name)
        (item,) = (each for each in cluster.lists["resourceslices"] if each["spec"]["nodeName"] == name)
        item["metadata"]["annotations"][AUDIT_HEAD] = str(head)
    return cluster
