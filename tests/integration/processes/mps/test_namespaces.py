"""A daemon of protocol 3: a namespace for each share. All of it from documentation: the stand-in alone can be asked."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.cdi_files import NodeFiles
from enforcer.dra.mps_namespaces import MpsNamespaces
from enforcer.dra.prepared_claim import Granted, Limit, Prepared
from enforcer.mps.client_v3 import NamespaceClient
from enforcer.mps.control import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import Version
from enforcer.mps.manager import MpsManager
from enforcer.mps.protocol import ServerStatus
from enforcer.mps.protocol_v3 import CAPPED, DEFAULT, SERVER, Space, SpaceRow, space_name
from enforcer.quota.from_claims import terms_of
from enforcer.quota.types import Mode
from gpushare.contract import MPS_PIPE_DIRECTORY, PIPE_PATH
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.state import MpsFault, Sim
from tests.fakes.gpu.world import change
from tests.integration.processes.mps.conftest import Make, daemons_of, until

pytestmark = pytest.mark.node

SHARE = Space(memory_mib=4608, percentage=25)
MODEL = ("0000-claim", "model")
NAME = space_name(*MODEL, SHARE)
JOIN = b"\x01join\0"


def shared_through_mps(gpu: str) -> Prepared:
    granted = Granted(request="model", pool="n", device="d", gpu=gpu, memory_mib=4096, device_mib=16384, mode=Mode.MPS)
    limit = Limit(container="model", request="model", memory_mib=4096, compute=30)
    terms = terms_of({})
    return Prepared(
        uid="c1", namespace="n", name="c", pod="p", pod_uid="p1", granted=(granted,), limits=(limit,), terms=terms
    )


@pytest.fixture(name="v3")
def _v3(stand_in: Path, make: Make, sim: Sim) -> MpsDaemon:
    change(sim, mps_v3=1)
    daemon = make(stand_in, version=Version.NAMESPACES)
    daemon.start()
    return daemon


def client_of(daemon: MpsDaemon) -> NamespaceClient:
    assert isinstance(daemon.client, NamespaceClient)
    return daemon.client


def rows(daemon: MpsDaemon) -> dict[str, SpaceRow]:
    return {row.name: row for row in client_of(daemon).spaces()}


def join(folder: Path) -> dict[str, str]:
    """What a CUDA program is told that has this folder as its pipe directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"{folder}/control")
        connection.send(JOIN)
        return dict(part.split("=", 1) for part in connection.recv(65536).rstrip(b"\0").decode().split("\t"))


def test_a_share_gets_a_directory_whose_limits_are_in_force(v3: MpsDaemon) -> None:
    where = v3.speech.give(*MODEL, SHARE)
    assert where == v3.pipe / SERVER / NAME
    told = join(where)
    assert (told["limits"], told["percentage"]) == (f"{v3.gpu}=4608M", "25")
    other = v3.speech.give("0000-claim", "other", Space(memory_mib=512))
    assert join(other)["limits"] == f"{v3.gpu}=512M"


def test_whoever_names_no_namespace_gets_next_to_nothing(v3: MpsDaemon) -> None:
    assert rows(v3)[DEFAULT].has(CAPPED)
    for where in (v3.pipe, v3.pipe / SERVER / DEFAULT):
        assert join(where)["limits"] == f"{v3.gpu}=1M"


def test_it_is_limited_before_its_path_is_given_out(v3: MpsDaemon, sim: Sim) -> None:
    sim.fail_mps(MpsFault(command="namespace set", answer=""))
    with pytest.raises(MpsError, match=r"told to limit namespace .* 4608 MiB, 25 percent") as caught:
        v3.speech.give(*MODEL, SHARE)
    assert caught.value.reason is Reason.MPS_LIMIT_NOT_APPLIED
    assert NAME not in rows(v3)


def test_a_share_that_is_given_again_is_the_same_even_while_it_is_used(v3: MpsDaemon, sim: Sim) -> None:
    where = v3.speech.give(*MODEL, SHARE)
    join(where)
    sim.register(os.getpid(), v3.gpu, 100, "mps")
    assert v3.speech.give(*MODEL, SHARE) == where
    assert v3.clients(v3.servers()[0]) == (os.getpid(),)


def test_another_quota_is_for_who_starts_later(v3: MpsDaemon, sim: Sim) -> None:
    before = v3.speech.give(*MODEL, SHARE)
    join(before)
    sim.register(os.getpid(), v3.gpu, 100, "mps")
    after = v3.speech.give(*MODEL, Space(memory_mib=600))
    assert join(after)["limits"] == f"{v3.gpu}=600M"
    v3.health()
    assert join(before)["limits"] == f"{v3.gpu}=4608M"  # a container that runs has it mounted
    sim.free(os.getpid(), v3.gpu)
    v3.speech.drop(MODEL[0])
    assert rows(v3).keys() == {DEFAULT}


def test_what_was_tampered_with_is_found_at_the_next_look(v3: MpsDaemon) -> None:
    v3.speech.give(*MODEL, SHARE)
    client_of(v3).limit_space(NAME, Space(memory_mib=16000))
    client_of(v3).limit_space(DEFAULT, Space(memory_mib=16000))
    v3.health()
    assert rows(v3)[NAME].has(SHARE)
    assert rows(v3)[DEFAULT].has(CAPPED)


def test_after_a_restart_everything_is_there_again(v3: MpsDaemon) -> None:
    v3.speech.give(*MODEL, SHARE)
    for pid in daemons_of(v3.directory):
        os.kill(pid, 9)
    until(lambda: not daemons_of(v3.directory))
    manager = MpsManager({v3.gpu: v3})
    assert isinstance(manager.health()[v3.gpu], MpsError)
    assert manager.start() == {}
    assert rows(v3)[NAME].has(SHARE)
    assert join(v3.pipe / SERVER / NAME)["limits"] == f"{v3.gpu}=4608M"


def test_a_server_that_ended_is_made_again_with_its_namespaces(v3: MpsDaemon) -> None:
    v3.speech.give(*MODEL, SHARE)
    (server,) = v3.servers()
    os.kill(server, 9)
    until(lambda: not v3.servers())
    manager = MpsManager({v3.gpu: v3})
    manager.health()
    assert manager.start() == {}
    assert v3.servers() not in {(), (server,)}
    assert rows(v3)[NAME].has(SHARE)


def test_a_claims_containers_get_the_directory_of_its_own_namespace(v3: MpsDaemon, root: Path) -> None:
    claim = shared_through_mps(v3.gpu)
    manager = MpsManager({v3.gpu: v3})
    files = NodeFiles(root / "cdi", root / "run", lambda _: str(v3.pipe), MpsNamespaces(manager))
    files.write(claim)
    (spec,) = (root / "cdi").glob("*.json")
    edits = json.loads(spec.read_text())["devices"][0]["containerEdits"]
    (mount,) = edits["mounts"]
    assert (mount["containerPath"], "ro" in mount["options"]) == (PIPE_PATH, True)
    assert f"{MPS_PIPE_DIRECTORY}={PIPE_PATH}" in edits["env"]
    told = join(Path(mount["hostPath"]))
    assert (told["limits"], told["percentage"]) == (f"{v3.gpu}=4096M", "30")
    files.remove(claim.uid)
    assert rows(v3).keys() == {DEFAULT}


def test_an_undone_claim_leaves_no_namespace(v3: MpsDaemon, sim: Sim) -> None:
    where = v3.speech.give(*MODEL, SHARE)
    kept = v3.speech.give("1111-claim", "model", SHARE).name
    join(where)
    sim.register(os.getpid(), v3.gpu, 100, "mps")
    v3.speech.drop("0000-claim")
    assert rows(v3).keys() == {DEFAULT, NAME, kept}  # it has a client still
    sim.free(os.getpid(), v3.gpu)
    v3.health()
    assert rows(v3).keys() == {DEFAULT, kept}
    assert not where.exists()


def test_a_server_that_is_said_to_be_created_and_is_not_there_is_no_start(stand_in: Path, root: Path, sim: Sim) -> None:
    change(sim, mps_v3=1)
    absent = "GPU-00000000-dead-beef-0000-000000000000"
    daemon = MpsDaemon(absent, root / "x", stand_in, limit_mib=1024, version=Version.NAMESPACES)
    with pytest.raises(MpsError, match="not on its list"):
        daemon.start()
    assert daemons_of(daemon.directory) == []


def test_servers_and_clients_are_known_as_ever(v3: MpsDaemon, tenant: Any) -> None:
    (server,) = v3.servers()
    assert v3.health().servers == {server: ServerStatus.ACTIVE}
    process = tenant()
    assert v3.clients(server) == (process.pid,)
    assert v3.terminate(process.pid) is True
    assert v3.clients(server) == ()
    assert v3.terminate(os.getpid()) is None
    assert server in v3.pids()


def test_a_client_that_stays_on_the_list_was_not_terminated(v3: MpsDaemon, tenant: Any, sim: Sim) -> None:
    process = tenant()
    sim.fail_mps(MpsFault(command="client terminate", answer="busy\n"))
    assert v3.terminate(process.pid, Deadline(60)) is False


def test_a_faulted_server_says_so(v3: MpsDaemon, sim: Sim) -> None:
    sim.strike(os.getpid(), v3.gpu, 700, fault=True)
    (server,) = v3.servers()
    assert v3.client.status(server) is ServerStatus.FAULT
    with pytest.raises(MpsError, match="takes nobody") as caught:
        v3.health()
    assert caught.value.reason is Reason.MPS_FAULT


def test_auto_speaks_what_the_program_can(stand_in: Path, make: Make, sim: Sim) -> None:
    old = make(stand_in, "0", version=Version.AUTO)
    old.start()
    assert not old.speech.namespaces
    assert old.speech.give(*MODEL, SHARE) == old.pipe
    change(sim, mps_v3=1)
    new = make(stand_in, "1", version=Version.AUTO)
    new.start()
    assert new.speech.namespaces
    assert old.health().limit_mib == old.limit_mib


def test_the_real_program_knows_no_protocol_3_and_auto_serves_with_2(real: Path, make: Make) -> None:
    daemon = make(real, version=Version.AUTO)
    daemon.start()
    assert not daemon.speech.namespaces
    assert daemon.client.percentage() == 100.0


def test_protocol_3_where_it_is_not_known_is_said(binary: Path, make: Make) -> None:
    daemon = make(binary, version=Version.NAMESPACES)
    with pytest.raises(MpsError, match="protocol 3 needs driver R615"):
        daemon.start()
    assert daemons_of(daemon.directory) == []


def test_arguments_say_nothing_to_a_daemon_of_protocol_2_so_its_silence_is_no_empty_list(
    binary: Path, make: Make
) -> None:
    daemon = make(binary)
    daemon.start()
    asked = NamespaceClient(daemon.control, daemon.gpu)
    assert daemon.control.run(("server", "list", "--format=csv,noheader")) == ""
    with pytest.raises(MpsError, match="answered nothing"):
        asked.alive()
    assert daemon.client.percentage() == 100.0


@pytest.mark.parametrize("wanted", [Version.LEGACY, Version.AUTO])
def test_a_daemon_that_runs_is_spoken_to_as_it_speaks(
    v3: MpsDaemon, stand_in: Path, make: Make, wanted: Version
) -> None:
    v3.speech.give(*MODEL, SHARE)
    heir = make(stand_in, version=wanted)
    heir.start()
    assert heir.speech.namespaces
    assert heir.speech.give(*MODEL, SHARE) == v3.pipe / SERVER / NAME
    assert len(heir.servers()) == 1
    heir.stop()
    assert daemons_of(heir.directory) == []


def test_a_directory_in_which_no_namespace_would_fit_is_refused_at_once(stand_in: Path, uuids: list[str]) -> None:
    where = Path("/" + "x" * 60)
    MpsDaemon(uuids[0], where, stand_in, limit_mib=1)
    with pytest.raises(ConfigError, match="at most 86"):
        MpsDaemon(uuids[0], where, stand_in, limit_mib=1, version=Version.AUTO)
