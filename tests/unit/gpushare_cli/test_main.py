import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from enforcer.audit.log import AuditLog
from enforcer.audit.record import Kind
from gpushare.errors import ConfigError, GpuShareError
from gpushare_cli import main as cli
from gpushare_cli.completion import SHELLS, script
from gpushare_cli.main import PARTS, VERBS, main

LARGE = {"asyncio", "cryptography", "email", "grpc", "kubernetes", "shtab", "ssl", "structlog", "urllib3", "yaml"}
"""Libraries that take more of a processor than Python's own start."""


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_that_ends_well(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: gpu-share {verb}")


def test_the_plugin_shows_its_own_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-gpu_share"])
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: kubectl gpu-share [-h] VERB")


@pytest.mark.parametrize("line", [[], ["nonsense"], ["inject"], ["inject", "-f", "x", "-o", "xml"], ["--nonsense"]])
def test_wrong_use_is_one_sentence_and_exit_code_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--help" in err


@pytest.mark.parametrize(("error", "code"), [(GpuShareError("it is broken"), 1), (ConfigError("no such file"), 2)])
def test_errors_are_sentences(
    error: GpuShareError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_verb", fail)
    assert main(["version"]) == code
    assert capsys.readouterr().err == f"gpu-share: {error.message}\n"


@pytest.mark.parametrize("part", sorted(PARTS))
def test_processes_get_the_rest_of_the_line(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def process(arguments: list[str]) -> int:
        seen.append(arguments)
        return 7

    monkeypatch.setattr(
        "importlib.import_module", {cli._MODULES.get(part, f"{part}.main"): SimpleNamespace(main=process)}.__getitem__
    )
    assert main([part, "--help", "x"]) == 7
    assert seen == [["--help", "x"]]


@pytest.mark.parametrize(
    "words",
    [[], ["version"], ["nonsense"], *([verb, word] for verb in VERBS for word in ("--help", "--nonsense"))],
)
def test_what_only_answers_how_it_is_called_loads_nothing_large(words: list[str]) -> None:
    code = """if True:
        import sys
        from gpushare_cli.main import main
        main(sys.argv[1:])
        print(*sorted({module.partition(".")[0] for module in sys.modules}), sep=",")
    """
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split(","))
    assert "gpushare_cli" in loaded
    assert not loaded & LARGE


def test_each_verb_is_importable_before_the_others() -> None:
    code = """if True:
        import importlib, sys
        from gpushare_cli.main import VERBS
        for verb in VERBS:
            for name in [name for name in sys.modules if name.startswith("gpushare_cli.")]:
                del sys.modules[name]
            importlib.import_module(f"gpushare_cli.{verb}")
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_images_interpreter_which_drops_docstrings_gives_the_same_help() -> None:
    code = """if True:
        import contextlib
        from gpushare_cli.main import PARTS, VERBS, main
        for word in (*sorted(VERBS), *sorted(PARTS)):
            with contextlib.suppress(SystemExit):
                main([word, "--help"])
    """
    full, bare = (
        subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True).stdout
        for options in ((), ("-OO",))
    )
    assert (bare, full.count("usage: gpu-share ")) == (full, len(VERBS) + len(PARTS))


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m gpushare_cli completion fish | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[1], done.stderr) == ("0", "")


def test_output_that_cannot_be_written_is_reported_in_one_sentence() -> None:
    command = f"{sys.executable} -m gpushare_cli completion fish > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "gpu-share: cannot write to standard output: No space left on device\n",
    )


@pytest.mark.parametrize("line", ["version", "completion fish"])
def test_who_closes_the_output_wants_the_exit_code_alone(line: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gpushare_cli {line} >&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asked", [["show"]])
def test_letters_that_the_terminal_does_not_know_are_written_as_escapes(asked: list[str], tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit") as log:
        log.append(Kind.WARNED, {"pod": {"name": "caf\u00e9"}})
    line = [sys.executable, "-m", "gpushare_cli", "audit", *asked, "--state", str(tmp_path)]
    told = {
        encoding: subprocess.run(
            line, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": encoding}
        )
        for encoding in ("ascii", "utf-8")
    }
    assert r"caf\xe9" in told["ascii"].stdout.decode("ascii")
    assert "caf\u00e9" in told["utf-8"].stdout.decode("utf-8")


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_is_one_line(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([asked]) == 0
    assert capsys.readouterr().out.startswith("gpu-share ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ins", []),
        ("inj", ["inject"]),
        ("inject --templ", ["--templates"]),
        ("inject -o ", ["yaml", "json", "patch", "diff"]),
        ("inject -f /proc/self/stat", ["/proc/self/stat", "/proc/self/statm", "/proc/self/status"]),
        ("audit ver", ["verify"]),
        ("audit export --format r", ["raw"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("resize --dry", ["--dry-run"]),
    ],
)
def test_verbs_options_values_and_files_are_completed(line: str, words: list[str]) -> None:
    asked = f"COMP_WORDS=(gpu-share {line}" + ("'')" if line.endswith(" ") else ")")
    ask = f"{asked}; COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_gpu_share; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script('bash')}\n{ask}"], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(words)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_the_program_by_its_name(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-gpu_share"])
    made = script(shell)
    assert "kubectl" not in made.replace("kubectl apply", "")
    assert all(verb in made for verb in VERBS)


@pytest.mark.parametrize("words", [["check"], ["top"], ["resize", "pod", "main", "1Gi"]])
@pytest.mark.parametrize("name", ["", "../x", "A b", "a" * 64, "team_a"])
def test_a_namespace_that_cannot_be_is_refused_before_the_cluster_is_asked(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--namespace", name]) == 2
    assert "is not the name of a namespace" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("chek", "check"), ("explian", "explain"), ("auidt", "audit"), ("q", "")])
def test_a_mistyped_verb_gets_the_one_that_is_meant(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    said = capsys.readouterr().err
    assert (f"did you mean {meant}?" in said, "did you mean" in said) == (bool(meant), bool(meant))
