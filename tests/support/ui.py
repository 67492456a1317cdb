"""``gpu-share ui`` as a program that runs, and its pages as a reader sees them."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from tests.integration.controlplane import programs
from tests.support.patience import patient

START: Final = 20.0


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(html: str) -> str:
    """Return what a reader sees."""
    found = _Text()
    found.feed(html)
    return re.sub(r"\s+", " ", " ".join(found.words))


@dataclass(frozen=True, slots=True)
class Open:
    """A server that runs, by its address."""

    address: str
    pid: int

    def text(self, name: str = "") -> str:
        """Return an answer as it came."""
        with urlopen(f"{self.address}{name}", timeout=patient(START)) as answer:
            return str(answer.read().decode())

    def page(self, name: str = "") -> str:
        """Return what a reader sees of a page; without a name, of that which the address leads to."""
        return words(self.text(name or self.text().partition("url=")[2].partition('"')[0]))

    def until(self, name: str, text: str, seconds: float = START) -> float:
        """Wait until a page has a text, as its script does, on an event; return the seconds it took."""
        began = time.monotonic()
        with urlopen(f"{self.address}events", timeout=patient(START)) as events:
            while text not in (shown := self.page(name)):
                assert time.monotonic() - began < patient(seconds), shown
                while not events.readline().startswith(b"data"):
                    pass
        return time.monotonic() - began

    @property
    def seconds(self) -> float:
        """Seconds of a processor that it used."""
        found = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def kib(self) -> int:
        """The most memory that it ever used."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1])


@contextmanager
def opened(kubeconfig: Path, *more: str, **variables: str) -> Iterator[Open]:
    """Run it until the end of the block, with these variables; it ends without a complaint."""
    command = [*programs.PRODUCT, "ui", "--no-browser", "--kubeconfig", str(kubeconfig), *more]
    pipe = subprocess.PIPE
    environment = programs.environment(**variables)
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield Open(process.stdout.readline().split()[-1], process.pid)
        finally:
            os.kill(process.pid, signal.SIGINT)
            complaints = process.stderr.read()
        assert (process.wait(), complaints) == (0, "")
