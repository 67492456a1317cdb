"""The whole life of the certificates under a clock turned by hand, met by clients that really verify."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import product

import pytest
import structlog
from cryptography import x509

from certs.rotation_plan import BACKDATED, Step
from gpushare.errors import ClusterError
from tests.unit.certs.world import HOST, World, accepts, handshake, leaf

DAY = timedelta(days=1)


def failing(_: str) -> None:
    raise ClusterError("the API server does not answer")


def certificates(bundle: bytes) -> int:
    return bundle.count(b"BEGIN CERTIFICATE")


def test_the_first_run_makes_a_pair_that_clients_accept_and_the_second_changes_nothing() -> None:
    world = World()
    assert world.run().step is Step.NOTHING
    assert world.accepted()
    assert world.published.ends == leaf(world.serving.files).not_valid_after_utc.isoformat()
    before = (world.authority.version, world.serving.version)
    assert world.run(minutes=1).step is Step.NOTHING
    assert (world.authority.version, world.serving.version) == before


def test_without_a_webhook_configuration_the_pair_is_kept_in_order_and_the_lack_reported() -> None:
    world, asked = World(), []

    def absent(bundle: bytes, ends: str) -> bool:
        asked.append((bundle, ends))
        raise ClusterError("there is no webhook configuration", 404)

    world.published.publish = absent  # type: ignore[method-assign] # as the API server answers
    for _ in range(3):
        with pytest.raises(ClusterError, match="no webhook configuration"):
            world.run(days=21)
        assert leaf(world.serving.files).not_valid_after_utc > world.now + 9 * DAY
    world.serving.files.clear()
    world.serving.version = 0
    with pytest.raises(ClusterError):
        world.run()
    del world.published.publish
    assert world.run().step in {Step.NOTHING, Step.WAIT}
    assert world.accepted()


def test_what_comes_after_a_failure_is_reported_again() -> None:
    world = World()
    rotator = world.rotator()
    with structlog.testing.capture_logs() as log:
        rotator.reconcile()
        rotator.reconcile()
        world.serving.before = failing
        with pytest.raises(ClusterError):
            rotator.reconcile()
        world.serving.before = str
        rotator.reconcile()
    assert [each["reason"] for each in log].count("CertificateCurrent") == 2


def test_the_authoritys_key_is_not_among_what_the_server_mounts() -> None:
    world = World()
    world.run()
    assert set(world.serving.files) == {"ca.crt", "tls.crt", "tls.key"}
    assert world.authority.files["ca.key"] != world.serving.files["tls.key"]
    assert world.authority.files["ca.key"] not in world.serving.files.values()


def test_lives_are_those_asked_for_and_the_leaf_never_outlives_its_authority() -> None:
    world = World(ca_days=60, leaf_days=30)
    world.run()
    for _ in range(90):
        world.run(hours=17)
        made, ca = leaf(world.serving.files), x509.load_pem_x509_certificate(world.authority.files["ca.crt"])
        assert made.not_valid_after_utc - made.not_valid_before_utc <= 30 * DAY
        assert made.not_valid_after_utc <= ca.not_valid_after_utc
        assert ca.not_valid_after_utc - ca.not_valid_before_utc == 60 * DAY


def test_the_leaf_is_renewed_at_two_thirds_of_its_life_and_not_before() -> None:
    world = World()
    world.run()
    first = leaf(world.serving.files)
    renewal = first.not_valid_before_utc + 20 * DAY
    world.now = renewal - timedelta(minutes=1)
    world.run()
    assert leaf(world.serving.files).serial_number == first.serial_number
    world.now = renewal
    world.run()
    assert leaf(world.serving.files).serial_number != first.serial_number
    assert certificates(world.published.bundle) == 1


def test_a_rotation_of_the_authority_takes_its_four_steps() -> None:
    world = World()
    world.run()
    while world.run(hours=6).step is not Step.WAIT:
        assert certificates(world.published.bundle) == 1
    assert certificates(world.published.bundle) == 2, "both are trusted before the new one signs anything"
    old = leaf(world.serving.files)
    world.run(seconds=299)
    assert leaf(world.serving.files).issuer == old.issuer, "the bundle settles"
    world.run(seconds=2)
    assert leaf(world.serving.files).issuer != old.issuer
    assert certificates(world.published.bundle) == 2, "the old leaf is still valid"
    world.now = old.not_valid_after_utc - timedelta(seconds=1)
    world.run()
    assert certificates(world.published.bundle) == 2
    world.now = old.not_valid_after_utc
    world.run()
    assert certificates(world.published.bundle) == 1
    assert world.accepted()


def rounds(world: World) -> Iterator[datetime]:
    """Three years of runs, now and then a fortnight without any."""
    for number in range(1100):
        yield world.now
        world.now += timedelta(days=14) if number % 400 == 399 else timedelta(hours=23, minutes=7)


def test_over_three_years_no_client_is_ever_turned_away() -> None:
    """Server and client may each lag by one generation, and the client's clock may be a day off."""
    world, pairs, bundles, rotations = World(), list[tuple[bytes, bytes]](), list[bytes](), 0
    tried = set[tuple[bytes, tuple[bytes, bytes]]]()
    for now in rounds(world):
        if world.run().step is Step.WAIT:
            rotations += 1
            bundles = [world.published.bundle]  # what settling is for: nobody holds an older bundle afterwards
            world.now += timedelta(minutes=6)
            world.run()
        pairs = [*([p for p in pairs if p != world.pair()][-1:]), world.pair()]
        bundles = [*([b for b in bundles if b != world.published.bundle][-1:]), world.published.bundle]
        for pair, bundle in product(pairs[-1:], bundles):
            assert all(accepts(bundle, pair, now + skew) for skew in (-DAY, timedelta(0), DAY))
        for pair in pairs:
            met = world.published.bundle, pair
            if accepts_time(pair, now) and met not in tried:
                assert handshake(*met)
                tried.add(met)
    assert rotations >= 4


def accepts_time(pair: tuple[bytes, bytes], now: datetime) -> bool:
    made = x509.load_pem_x509_certificate(pair[0])
    return made.not_valid_before_utc <= now < made.not_valid_after_utc


def test_a_client_of_another_name_or_another_authority_is_refused() -> None:
    world, stranger = World(), World()
    world.run()
    stranger.run()
    assert not handshake(stranger.published.bundle, world.pair())
    assert not handshake(world.published.bundle, world.pair(), host="example.org")
    assert not accepts(world.published.bundle, world.pair(), world.now + 31 * DAY)
    assert handshake(world.published.bundle, world.pair(), host="127.0.0.1")
    assert handshake(world.published.bundle, world.pair(), host=HOST)


def test_a_new_certificate_is_accepted_by_a_client_whose_clock_is_a_day_slow() -> None:
    world = World()
    world.run()
    assert accepts(world.published.bundle, world.pair(), world.now - BACKDATED + timedelta(minutes=1))


@pytest.mark.parametrize("days", [-400, -2, 2, 400])
def test_after_a_wrong_clock_is_put_right_one_run_brings_everything_back(days: int) -> None:
    world = World()
    world.run()
    world.now += days * DAY
    world.run()
    world.now -= days * DAY
    world.run(minutes=1)
    world.run(minutes=10)
    assert world.accepted()


def test_a_clock_a_day_off_changes_nothing() -> None:
    world = World()
    world.run()
    before = (world.authority.files, world.serving.files)
    world.run(days=-1)
    world.run(days=2)
    assert (world.authority.files, world.serving.files) == before


def test_other_names_are_issued_at_once_by_the_same_authority() -> None:
    world = World()
    world.run()
    bundle = world.published.bundle
    world.wanted = type(world.wanted)(names=frozenset({"DNS:other.example"}))
    world.run()
    assert handshake(bundle, world.pair(), host="other.example")
    assert world.published.bundle == bundle
