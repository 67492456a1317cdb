"""Where the demo takes place: the things that run, and how it speaks."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare_cli.terminal import Colour, Terminal
from tests.demo.admission import Webhook
from tests.demo.children import Child, Children, DemoError
from tests.demo.node import Container, Node


@dataclass(slots=True)
class Stage:
    """What one performance of the demo has at hand; filled as it goes on."""

    terminal: Terminal
    folder: Path
    children: Children
    with_enforcer: bool = True
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    _webhook: Webhook | None = None
    _node: Node | None = None
    enforcer: Child | None = None

    @property
    def webhook(self) -> Webhook:
        """The webhook, once it runs."""
        assert self._webhook is not None
        return self._webhook

    @webhook.setter
    def webhook(self, webhook: Webhook) -> None:
        self._webhook = webhook

    @property
    def node(self) -> Node:
        """The node, once there is one."""
        assert self._node is not None
        return self._node

    @node.setter
    def node(self, node: Node) -> None:
        self._node = node

    def step(self, title: str) -> None:
        """Begin the next step."""
        self.steps += 1
        self.terminal.say()
        self.terminal.say(self.terminal.paint(f"{self.steps}. {title}", Colour.BOLD))

    def say(self, text: str) -> None:
        """Say something, indented below its step."""
        for line in text.splitlines():
            self.terminal.say(f"   {line}".rstrip())

    def observed(self, what: str) -> None:
        """Tick off something the demo has to show and has shown."""
        mark = "\u221a" if self.terminal.unicode else "ok"
        self.say(f"{self.terminal.paint(mark, Colour.GREEN)} {what}")

    def need(self, condition: bool, otherwise: str) -> None:  # noqa: FBT001
        """Go on only if it is so. Raises ``DemoError``."""
        if not condition:
            raise DemoError(otherwise)

    def close(self) -> None:
        """End every process, then remove what the node made."""
        self.children.stop()
        if self._node is not None:
            self._node.close()

    @property
    def seconds(self) -> float:
        """Time since the demo began."""
        return time.monotonic() - self.began
