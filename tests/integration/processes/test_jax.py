"""What the driver sets is accepted by releases of JAX, and a program on the CPU computes the same with it.

Needs a package index the first time: each release is kept in a virtual environment of its own in the cache.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.framework_variables import SETTINGS, variables
from gpushare.memory_fraction import Reserve, budget
from tests.support.need import missing

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
RELEASES: Final = ("0.4.38", "0.7.2", "0.10.2")
CACHE: Final = Path.home() / ".cache" / "gpu-share"
MINE: Final = budget(4096, 81_008, Reserve(), context_mib=619)
SET: Final = variables([each.key for each in SETTINGS], MINE)
OPTIONS: Final = (
    "import json; from jaxlib import xla_client as x; print(json.dumps(x.generate_pjrt_gpu_plugin_options()))"
)
PROGRAM: Final = """
import jax
import jax.numpy as jnp
x = jnp.arange(12.0).reshape(3, 4)
found = jax.jit(lambda a: (a @ a.T).sum())(x), jax.grad(lambda a: (a**2).sum())(x).sum()
print(jax.default_backend(), *map(float, found))
"""


@pytest.fixture(scope="module", params=RELEASES)
def python(request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with one release of JAX."""
    folder = CACHE / f"jax-{request.param}"
    program, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        wanted = [f"jax=={request.param}", f"jaxlib=={request.param}"]
        install = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        found = subprocess.run(install, check=False, capture_output=True, text=True)
        if found.returncode:
            missing(f"jax {request.param} cannot be installed: {found.stderr[-200:]}")
        done.touch()
    return program


def run(python: Path, text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-c", text], env=environment, check=False, capture_output=True, text=True, timeout=300
    )


def options(python: Path, environment: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(python, OPTIONS, environment).stdout)
    return found


def test_jaxlib_takes_the_fraction_and_preallocates_nothing(python: Path) -> None:
    plain, told = options(python, {}), options(python, SET)
    assert not {"memory_fraction", "preallocate"} & plain.keys()
    assert told == plain | {"memory_fraction": float(MINE.of_total), "preallocate": False}


def test_two_fractions_are_refused_which_is_why_one_is_set_empty(python: Path) -> None:
    found = run(python, OPTIONS, SET | {"XLA_CLIENT_MEM_FRACTION": "0.5"})
    assert found.returncode
    assert "XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION" in found.stderr


def test_a_program_on_the_cpu_computes_the_same(python: Path) -> None:
    plain, told = run(python, PROGRAM, {}), run(python, PROGRAM, SET)
    assert (told.returncode, told.stdout) == (0, "cpu 1134.0 132.0\n")
    assert (told.stdout, told.stderr) == (plain.stdout, plain.stderr)
