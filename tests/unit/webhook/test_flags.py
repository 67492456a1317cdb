"""Flags, variables and the file: who wins, and what is refused."""

from pathlib import Path

import pytest

from gpushare.errors import ConfigError
from webhook.flags import Clients, Options


def test_there_are_defaults() -> None:
    options = Options.read([], {})

    assert (options.bind, options.admin) == (("0.0.0.0", 10250), ("0.0.0.0", 9402))
    assert (options.retention, options.kubeconfig, options.namespaces) == (300.0, None, None)


def test_a_flag_wins_over_a_variable_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("image: file\nretention: 10\nbind: 127.0.0.1:1\nmin-memory: 1Gi\ntolerations: [{key: a}]\n")
    environment = {"GPU_SHARE_IMAGE": "variable", "GPU_SHARE_RETENTION": "20"}

    options = Options.read(["--config", str(file), "--image", "flag"], environment)

    assert (options.settings.image, options.retention, options.bind) == ("flag", 20.0, ("127.0.0.1", 1))
    assert options.settings.min_memory_mib == 1024
    assert options.settings.tolerations == ({"key": "a"},)


def test_addresses_may_be_of_version_6() -> None:
    assert Options.read(["--bind", "[::1]:443"], {}).bind == ("::1", 443)


@pytest.mark.parametrize("text", ["", "10250", ":1", "a:b", "a:70000", "a:-1", "a:\u0661"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--bind"):
        Options.read(["--bind", text], {})


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "\u0661"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--retention"):
        Options.read([f"--retention={text}"], {})


@pytest.mark.parametrize(
    "text",
    ["imagine: a", "[]", "a: [", "config: x", "a: 2026-99-99", pytest.param("[" * 1_000, id="deep"), "{}\n---\n{}"],
)
def test_what_a_file_cannot_say_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match="--config"):
        Options.read(["--config", str(tmp_path / "config")], {})


def test_an_unknown_key_is_named_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("imagine: a")
    with pytest.raises(ConfigError, match="'imagine'; write one of across-nodes, admin, bind, certs, client-ca"):
        Options.read([], {"GPU_SHARE_CONFIG": str(tmp_path / "config")})


@pytest.mark.parametrize("argv", [["--imagine", "a"], ["--im", "a"], ["stray"]])
def test_an_unknown_flag_is_wrong_use(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Options.read(argv, {})

    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_variables_of_services_are_nobodys_mistake() -> None:
    Options.read([], {"GPU_SHARE_WEBHOOK_SERVICE_HOST": "10.0.0.1", "GPU_SHARE_WEBHOOK_PORT": "tcp://10.0.0.1:443"})


def test_clients_need_no_certificate_unless_a_ca_is_named() -> None:
    assert Options.read([], {"GPU_SHARE_CLIENT_CA": "", "GPU_SHARE_CLIENT_NAME": ""}).clients is None
    assert Options.read(["--client-ca", "/ca", "--client-name", "a"], {}).clients == Clients(ca=Path("/ca"), name="a")


def test_a_client_name_without_a_ca_is_refused() -> None:
    with pytest.raises(ConfigError, match="--client-ca"):
        Options.read(["--client-name", "a"], {})


def test_what_is_in_force_can_be_logged() -> None:
    assert Options.read(["--log-level", "debug"], {}).effective()["settings"]["log_level"] == "debug"
