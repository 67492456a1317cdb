"""What is stored may be damaged in any way: it is made anew, and who is still trusted stays trusted."""

import time
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from certs import pki
from certs.rotation_plan import Step
from gpushare.reasons import Reason
from tests.unit.certs.world import World, accepts, handshake, leaf

BOMB = b"-----BEGIN CERTIFICATE-----\n" + b"A" * 900_000 + b"\n-----END CERTIFICATE-----\n"
DAMAGE = {
    "gone": None,
    "empty": b"",
    "no PEM": b"hello",
    "not UTF-8": b"\xff\xfe\x00",
    "cut": b"-----BEGIN CERTIFICATE-----\nMIIB",
    "a bomb": BOMB,
}


def damaged(files: dict[str, bytes], name: str, value: bytes | None) -> None:
    files.pop(name)
    if value is not None:
        files[name] = value


@pytest.mark.parametrize("value", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
def test_a_damaged_serving_pair_is_issued_again_and_reported(name: str, value: bytes | None) -> None:
    world = World()
    world.run()
    bundle = world.published.bundle
    damaged(world.serving.files, name, value)
    with capture_logs() as logs:
        world.run()
    assert handshake(bundle, world.pair())
    assert logs[0]["reason"] == Reason.CERTIFICATE_REJECTED


@pytest.mark.parametrize("value", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", ["ca.crt", "ca.key"])
def test_a_damaged_authority_is_replaced_while_its_leaf_stays_trusted(name: str, value: bytes | None) -> None:
    world = World()
    world.run()
    pair = world.pair()
    damaged(world.authority.files, name, value)
    assert world.run().step is Step.WAIT
    assert world.pair() == pair, "it works: nothing is hurried"
    assert world.accepted()
    world.run(minutes=6)
    assert world.pair() != pair
    assert world.accepted()
    assert handshake(world.published.bundle, pair), "a server that lags is still trusted"
    world.now = leaf({"tls.crt": pair[0]}).not_valid_after_utc
    world.run()
    world.run(minutes=6)
    assert not handshake(world.published.bundle, pair)


def test_both_stores_deleted_begin_again() -> None:
    world = World()
    world.run()
    for store in (world.authority, world.serving):
        store.files, store.version = {}, 0
    assert world.run().step is Step.NOTHING
    assert world.accepted()


def test_a_torn_pair_is_none() -> None:
    world, other = World(), World()
    world.run()
    other.run()
    world.serving.files["tls.key"] = other.serving.files["tls.key"]
    with capture_logs() as logs:
        world.run()
    assert "another certificate" in logs[0]["detail"]
    assert world.accepted()


def test_an_authority_with_anothers_key_never_signs() -> None:
    world, other = World(), World()
    world.run()
    other.run()
    world.authority.files["ca.key"] = other.authority.files["ca.key"]
    world.run()
    world.run(minutes=6)
    assert world.accepted()


def test_a_leaf_in_the_place_of_the_authority_never_signs() -> None:
    world = World()
    world.run()
    world.authority.files |= {"ca.crt": world.serving.files["tls.crt"], "ca.key": world.serving.files["tls.key"]}
    world.run()
    world.run(minutes=6)
    assert world.accepted()


def test_notes_that_cannot_be_read_make_the_next_authority_settle_again_and_keep_the_old() -> None:
    world = World()
    world.run()
    while world.run(hours=6).step is not Step.WAIT:
        pass
    world.authority.files["state.json"] = b'{"bundled": "2000-01-01T00:00:00", "retire": []}'
    assert world.run(hours=1).step is Step.WAIT
    world.run(minutes=6)
    world.authority.files["state.json"] = b"["
    world.run(days=29)
    assert world.published.bundle.count(b"BEGIN") == 2, "without a date the old one stays until it expires"
    assert world.accepted()


def test_pem_bombs_cost_nothing() -> None:
    many = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" * 50_000
    started = time.process_time()
    for pem in (BOMB, many, BOMB * 8):
        assert pki.read_certificates(pem) == ()
        assert pki.read_authority(pem, pem) is None
        assert pki.read_leaf(pem, pem, [pem]) is None
    assert time.process_time() - started < 0.25


@given(st.binary(max_size=300), st.integers(0, 2000), st.sampled_from(["ca.crt", "ca.key", "tls.crt", "tls.key"]))
@settings(max_examples=60, deadline=None)
def test_no_damage_is_beyond_repair(data: bytes, place: int, name: str) -> None:
    world = World()
    world.run()
    store = world.authority if name.startswith("ca.") else world.serving
    whole = store.files[name]
    store.files[name] = whole[:place] + data + whole[place + len(data) :]
    world.run()
    world.run(minutes=6)
    assert accepts(world.published.bundle, world.pair(), world.now + timedelta(minutes=1))
    assert handshake(world.published.bundle, world.pair())
