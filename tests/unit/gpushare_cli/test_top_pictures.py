"""The pictures of ``gpu-share top`` in the documentation are what it writes today."""

import json
from typing import Any, Final
from unittest.mock import patch

import pytest

from gpushare.kube_client import KubeClient
from gpushare_cli.main import main
from tests.support.pictures.svg import FOLDER
from tests.support.pictures.terminal import lines_of, picture
from tests.unit.gpushare_cli.clusters import Cluster
from tests.unit.gpushare_cli.test_terminal import Tty
from tests.unit.gpushare_cli.test_top import GPU, container, status
from tests.unit.gpushare_cli.test_top_cluster import kill, pod, used

COLUMNS: Final = 88
"""Of the terminal: the narrowest in which ``top -A`` shows every column."""
PICTURES: Final = {"top-all-nodes.svg": ["-A"], "top-namespace.svg": ["-n", "asr"]}


def nodes() -> dict[str, dict[str, Any]]:
    """Two nodes, three GPUs: one container over quota in its grace period, one killed, one near its quota."""
    first = status(
        container("notebook", 9216, "Warned", 10) | {"killIn": 3.2, "reservedMib": 4096, "utilizationPercent": 45},
        container("tts", 3072, "Within", 7) | {"reservedMib": 4096, "utilizationPercent": 30},
        node="gpu-1",
    )
    second = status(
        container("asr-0", 3900, "Within", 3) | {"reservedMib": 4096, "utilizationPercent": 61},
        container("train", 0, "CoolingDown") | {"reservedMib": 4096, "utilizationPercent": 0},
        node="gpu-2",
    )
    for each, mib, percent in ((first, 12288, 75), (second, 3900, 61)):
        each["strangers"] = []
        each["gpus"][0] |= {"usedMib": mib, "utilizationPercent": percent}
    second["gpus"].append({**second["gpus"][0], "uuid": "GPU-b", "index": 1, "usedMib": 0, "utilizationPercent": 0})
    return {"gpu-1": first, "gpu-2": second}


def cluster() -> Cluster:
    """A cluster of which both views can be asked."""
    made = Cluster()
    for name, raw in nodes().items():
        made.enforcer(name, json.dumps(raw).encode())
    made.add("pods", pod("tts"), pod("notebook"), pod("train"))
    for name, mib, peak, state in (
        ("tts", 3072, 3200, "Within"), ("notebook", 9216, 9216, "Warned"), ("train", 0, 5120, "CoolingDown"),
    ):  # fmt: skip
        made.answers[name] = used(usedMiB=mib, peakMiB=peak, state=state), None
    made.add("events", kill("train"))
    return made


def shown(options: list[str]) -> str:
    """Run ``gpu-share top`` in a terminal, and draw what it writes."""
    stream = Tty()
    environment = {"COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": ""}
    there = cluster()
    with (
        patch.object(KubeClient, "connect", lambda *_: there),
        patch.dict("os.environ", environment),
        patch("sys.stdout", stream),
    ):
        assert main(["top", *options]) == 0
    command = " ".join(["$ gpu-share top", *options])
    return picture(command, [command, *stream.getvalue().splitlines()])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_top_writes(name: str) -> None:
    drawn = shown(PICTURES[name])
    lines = lines_of(drawn)
    assert GPU[:12] in drawn or "gpu-2" in drawn
    assert max(map(len, lines)) <= COLUMNS
    assert drawn == (FOLDER / name).read_text(), f"docs/pictures/{name} shows something else: make golden writes it"


def write() -> None:
    """Write the pictures."""
    for name, options in PICTURES.items():
        (FOLDER / name).write_text(shown(options))


if __name__ == "__main__":
    write()
