import os
from pathlib import Path

import pytest

from enforcer.nvml.driver_root import LIBRARY, PROGRAM, DriverRoot, inside
from gpushare.errors import MpsError, NvmlError

DEBIAN = "usr/lib/x86_64-linux-gnu"


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """Laid out as on Debian, where libraries are reached over links from the root."""
    root = tmp_path / "driver"
    for folder in ("usr/bin", f"{DEBIAN}/nvidia/current", "etc/alternatives"):
        (root / folder).mkdir(parents=True)
    (root / f"{DEBIAN}/nvidia/current/libnvidia-ml.so.570.86").write_bytes(b"no library at all")
    (root / f"{DEBIAN}/nvidia/current/{LIBRARY}").symlink_to("libnvidia-ml.so.570.86")
    (root / "etc/alternatives/nvml").symlink_to(f"/{DEBIAN}/nvidia/current/{LIBRARY}")
    (root / f"{DEBIAN}/{LIBRARY}").symlink_to("/etc/alternatives/nvml")
    (root / f"{DEBIAN}/libcuda.so.1").write_bytes(b"")
    (root / f"{DEBIAN}/libc.so.6").write_bytes(b"")
    (root / "usr/bin" / PROGRAM).touch(0o755)
    return root


def test_links_are_followed_as_they_were_meant_there(root: Path) -> None:
    assert inside(root, f"{DEBIAN}/{LIBRARY}") == root / f"{DEBIAN}/nvidia/current/libnvidia-ml.so.570.86"


def test_links_that_lead_nowhere_out_or_round_find_nothing(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("/a")
    (root / "gone").symlink_to("/nowhere")
    (root / "out").symlink_to("../../../usr/bin")
    assert (inside(root, "a"), inside(root, "gone"), inside(root, "nothing")) == (None, None, None)
    assert inside(root, "out") == root / "usr/bin"


def test_mps_gets_nvidias_libraries_and_no_other(root: Path, tmp_path: Path) -> None:
    driver = DriverRoot(root)
    environment = driver.environment(tmp_path / "run")
    folder = Path(environment["LD_LIBRARY_PATH"])
    assert {link.name for link in folder.iterdir()} == {"libcuda.so.1", LIBRARY}
    assert (folder / LIBRARY).resolve() == root / f"{DEBIAN}/nvidia/current/libnvidia-ml.so.570.86"
    assert environment["PATH"].split(":")[-1] == str(root / "usr/bin")
    assert driver.program() == root / "usr/bin" / PROGRAM


def test_links_follow_a_driver_that_changed(root: Path, tmp_path: Path) -> None:
    folder = Path(DriverRoot(root).environment(tmp_path / "run")["LD_LIBRARY_PATH"])
    (root / f"{DEBIAN}/libcuda.so.1").unlink()
    (root / f"{DEBIAN}/nvidia/current/libnvidia-ml.so.580").write_bytes(b"")
    (root / f"{DEBIAN}/nvidia/current/{LIBRARY}").unlink()
    (root / f"{DEBIAN}/nvidia/current/{LIBRARY}").symlink_to("libnvidia-ml.so.580")
    DriverRoot(root).environment(tmp_path / "run")
    assert [link.readlink().name for link in folder.iterdir()] == ["libnvidia-ml.so.580"]


def test_what_is_missing_is_reported_with_where_it_was_looked_for(tmp_path: Path) -> None:
    driver = DriverRoot(tmp_path)
    for ask, error in ((driver.load, NvmlError), (driver.program, MpsError)):
        with pytest.raises(error) as caught:
            ask()
        assert f"below {tmp_path}" in caught.value.message
        assert "--driver-root (chart value driverRoot)" in caught.value.message


def test_a_library_that_is_none_is_named(root: Path) -> None:
    with pytest.raises(NvmlError, match=r"cannot load .*libnvidia-ml\.so\.570\.86"):
        DriverRoot(root).load()


def test_the_machines_own_root_leaves_everything_to_loader_and_path(tmp_path: Path) -> None:
    driver = DriverRoot()
    driver.load()
    assert (driver.program(), driver.environment(tmp_path / "run")) == (Path(PROGRAM), dict(os.environ))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_reported(root: Path, tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(MpsError, match="cannot link"):
        DriverRoot(root).environment(tmp_path / "run")
