"""Every picture of the documentation is small, whole and without scripts, and drawn from what it says it shows."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.demo.recording import PICTURE, TRANSCRIPT, Recording
from tests.load.bench import plot
from tests.support.pictures import panels
from tests.support.pictures.svg import FOLDER
from tests.support.pictures.terminal import lines_of, picture

SVG = "{http://www.w3.org/2000/svg}"
DOCS = FOLDER.parent
BIGGEST = 150 * 1024
PLAIN = {"svg", "style", "text", "tspan", "rect", "line", "polyline", "path", "circle", "g", "defs", "marker"}


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_small_and_has_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    tree = ET.fromstring(text)
    assert path.stat().st_size < BIGGEST
    assert {each.tag.removeprefix(SVG) for each in tree.iter()} <= PLAIN
    assert tree.get("aria-label")
    assert not re.search(r"url\((?!#)|@import|href", text)
    assert text.count("://") == text.count("http://www.w3.org/2000/svg")


def test_every_part_in_the_architecture_is_a_part_of_the_page_or_the_glossary() -> None:
    known = "\n".join(next(DOCS.rglob(f"{name}.md")).read_text() for name in ("architecture", "glossary")).lower()
    tree = ET.parse(FOLDER / "architecture.svg")
    parts = [str(each.text) for each in tree.iter(f"{SVG}text") if each.get("class") in {"name", "small"}]
    assert len(parts) > 12
    assert [each for each in parts if each.lower() not in known] == []


def clocked(*steps: tuple[float, str]) -> Recording:
    """A recording of texts that came at these seconds."""
    now = 0.0
    recording = Recording(io.StringIO(), lambda: now)
    for at, text in steps:
        now = at
        recording.write(text)
    return recording


def test_the_demos_picture_shows_its_transcript() -> None:
    shown = PICTURE.read_text()
    assert lines_of(shown) == TRANSCRIPT.read_text().splitlines()
    assert "animation:roll" in shown


def test_a_recording_draws_what_came_and_when(tmp_path: Path) -> None:
    long = "x" * 200 + " <&> end"
    recording = clocked(
        (0, "one\ntwo\n"), (0.01, "\x1b[32mthr"), (0.02, "ee\x1b[0m\n"), (60, f"{long}\n"), (60.5, "last\n")
    )
    recording.save(tmp_path / "demo.txt", tmp_path / "demo.svg")
    svg = (tmp_path / "demo.svg").read_text()
    assert (tmp_path / "demo.txt").read_text() == f"one\ntwo\nthree\n{long}\nlast\n"
    assert lines_of(svg) == ["one", "two", "three", long, "last"]
    whole = 1 + 3 * 0.12 + 0.5 + 0.12 + 6
    assert f"animation:roll {whole:.1f}s" in svg, "the minute is shortened to a second, and each line can be read"
    assert re.findall(r"@keyframes curtain{0.00%{transform:translateY\((\d+)px\)}", svg) == ["57"]


def test_a_terminal_keeps_colours_and_every_letter() -> None:
    svg = picture("t", ["\x1b[31mred <\x1b[0m & plain"])
    assert 'class="r">red &lt;' in svg
    assert lines_of(svg) == ["red < & plain"]


def test_panels_show_what_prometheus_returned() -> None:
    over = {"result": [{"metric": {"pod": "tts", "gpu": "GPU-a1000000-4"}, "values": [[0, "0"], [60, "2147483648"]]}]}
    once = {"result": [{"metric": {"mode": "mps"}, "value": [0, "3"]}, {"metric": {}, "value": [0, "NaN"]}]}
    found = [
        panels.Panel("Memory", "timeseries", "bytes", panels.series(over, "{{pod}} {{gpu}}")),
        panels.Panel("GPUs", "stat", "none", panels.series(once, "{{mode}}")),
        panels.Panel("All", "table", "none", panels.series(once, ""), [("Value", "number")], ["gpu"]),
    ]
    said = [each.text for each in ET.fromstring(panels.row("Fleet", found, "note")).iter(f"{SVG}text")]
    assert {
        "Fleet",
        "note",
        "Memory",
        "tts GPU-a1000000",
        "2 GiB",
        "0.5 GiB",
        "mps: 3",
        "mode",
        "number",
        "mps",
        "3",
    } <= set(said)
    assert [panels.value(each, "s") for each in (0.0025, 3, 864000)] == ["2.5 ms", "3 s", "10 days"]


def test_a_benchmark_is_drawn_with_its_servers_loads_machine_and_versions(tmp_path: Path) -> None:
    machine = {"cores": 2, "processor": "EPYC", "load_average": 0.1, "versions": {"Python": "3.11.7"}}
    loads = [("typical", 1), ("typical", 8)]
    rows = [
        {"pod": pod, "connections": connections, "server": server, "p50_ms": 1.5}
        for server in ("gpu-share", "Go")
        for pod, connections in loads
    ]
    plot.write({"when": "2026-11-25T00:00:00", "machine": machine, "settings": {"rounds": 5}, "rows": rows}, tmp_path)
    said = [str(each.text) for each in ET.fromstring((tmp_path / plot.NAME).read_text()).iter(f"{SVG}text")]
    assert {"gpu-share", "Go", "p50, ms", "typical, 8 conn."} <= set(said)
    below = " ".join(said[-2:])
    assert "EPYC" in below
    assert "Python 3.11.7" in below
