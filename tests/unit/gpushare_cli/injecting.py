"""One call of ``gpu-share inject``, for tests."""

from pathlib import Path

import pytest

from gpushare_cli.main import main

NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations: {gpu-share.io/%s: %s}\n"


class Run:
    """One call of the command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys, self._folder = capsys, folder

    def __call__(self, source: str | bytes, *options: str) -> tuple[int, str, str]:
        file = self._folder / "in.yaml"
        file.write_bytes(source.encode() if isinstance(source, str) else source)
        code = main(["inject", "-f", str(file), *options])
        out, err = self._capsys.readouterr()
        return code, out, err
