from tests.house import ROOT, check, check_text, functions, impure, summary
from tests.house_words import BANNED


def test_a_long_function_and_a_long_file_are_named() -> None:
    body = "def f() -> None:\n" + "    x = 1\n" * 51
    assert check("webhook/a.py", body) == ["webhook/a.py:1: f has 51 lines; a function stops at 50"]
    assert check("webhook/a.py", "x = 1\n" * 401) == ["webhook/a.py:1: 401 lines; a file stops at 400"]


def test_docstrings_do_not_count() -> None:
    assert functions("a.py", 'def f() -> None:\n    """Doc.\n\n    More.\n    """\n    x = 1\n')[0].length == 1


def test_names_of_the_contract_are_spelled_once() -> None:
    text = 'A = "gpu-share.io/memory"\nB = f"{A} CUDA_MPS_PIPE_DIRECTORY"\nC = "CUDA_MPS_PIPE_DIRECTORY"\n'
    assert [line.split(":")[1] for line in check("enforcer/a.py", text)] == ["1", "3"]
    assert check("gpushare/contract.py", text) == []
    assert check("tests/a.py", text) == []
    assert check("webhook/a.py", '"""About gpu-share.io."""\nX = 1\n"""gpu-share.io/memory"""\n') == []


def test_expressions_are_compiled_where_they_get_a_bound() -> None:
    text = "import re\nfrom re import compile\n"
    assert [line.split(":")[1] for line in check("webhook/a.py", text)] == ["1", "2", "2"]
    assert check("gpushare/patterns.py", text) == []
    assert check("tests/a.py", text) == []


def test_a_field_that_tenants_may_write_is_named_in_what_decides() -> None:
    text = 'A = status.get("containerStatuses")\nB = each["containerID"]\nC = "containerId"\n'
    assert [line.split(":")[1] for line in check("enforcer/quota/from_claims.py", text)] == ["1", "2"]
    assert check("enforcer/oom/diagnosis.py", text) == []
    assert check("gpushare_cli/a.py", text) == []


def test_a_text_that_nothing_uses_is_named() -> None:
    fine = '"""Doc."""\nA = "a"\n"""Of A."""\nclass C:\n    """Doc."""\n    b: int\n    """Of b."""\n'
    fine += 'def f():\n    self.c = 1\n    """Of c."""\n'
    assert check("webhook/a.py", fine) == []
    cut = (
        'def f():\n    """Doc."""\n    yield f"one {x} "\n    "two"\n    if x:\n        f"{x}"\n    y = "a"\n    "b"\n'
    )
    for path in ("webhook/a.py", "tests/a.py"):
        assert {line.split(":")[1] for line in check(path, cut)} == {"4", "6", "8"}


PURE = '"""Hold. Pure."""\n'


def test_a_pure_module_reaches_nothing_that_is_not() -> None:
    pure = '"""Parse. Pure."""\nimport json\nfrom enforcer.b import C\n'
    assert impure({"enforcer/a.py": pure, "enforcer/b.py": PURE}) == []
    assert impure({"enforcer/a.py": pure, "enforcer/b.py": '"""Hold."""\n'}) == [
        "enforcer/a.py:3: a pure module imports enforcer.b",
        "enforcer/a.py:3: a pure module imports enforcer.b.C",
    ]
    assert impure({"webhook/a.py": '"""Parse. Pure.\n\nMore.\n"""\ndef f() -> None:\n    from os import path\n'}) == [
        "webhook/a.py:6: a pure module imports os",
        "webhook/a.py:6: a pure module imports os.path",
    ]
    assert impure({"enforcer/a.py": pure, "enforcer/__init__.py": "import os\n", "enforcer/b.py": PURE}) == [
        "enforcer/a.py:3: a pure module imports enforcer.b",
        "enforcer/a.py:3: a pure module imports enforcer.b.C",
    ]
    assert impure({"webhook/a.py": '"""Parse. Pure."""\nfrom .b import C\n'}) == [
        "webhook/a.py:2: a pure module imports .",
    ]
    tricks = '"""Parse. Pure."""\nimport shutil\nx = open("f")\ny = datetime.now(UTC)\nz = __import__("os")\n'
    assert [line.rpartition("module ")[2] for line in impure({"webhook/a.py": tricks})] == [
        "imports shutil", "calls open", "calls now", "calls __import__",
    ]  # fmt: skip
    assert impure({"webhook/a.py": "import os\n", "tests/a.py": '"""Pure."""\nimport os\n'}) == []


def test_the_summary_tells_the_median() -> None:
    assert "product median 1 lines" in summary(functions("webhook/a.py", "def f() -> None:\n    pass\n"))
    assert summary([]) == "no functions"


def test_private_words_are_named_in_the_product_and_in_identifiers_and_strings_of_helpers() -> None:
    text = '"""What was told."""\n\n\ndef judge(wish: int) -> str:\n    """Held."""\n    return f"{wish} was told"\n'
    found = [line.split(": ", 1)[1].partition(" ")[0] for line in check("webhook/a.py", text)]
    assert sorted(found) == ["'held'", "'judge'", "'told'", "'told'", "'wish'", "'wish'"]
    assert check("webhook/a.py", "shill = withheld = 'planes, untold'\n") == []
    assert len(check("tests/support/a.py", text)) == 4
    assert check("tests/unit/a.py", text) == []


def test_private_words_and_conflicts_are_named_in_charts() -> None:
    assert [line.split(":")[1] for line in check_text("deploy/a.yaml", "a: 1\n# whoever\n- aWish\n")] == ["2", "3"]
    asked = 'authorizer.resource("a").namespace(request.namespace).check("update").allowed()'
    assert "asks for a permission in a namespace" in check_text("deploy/a.yaml", asked)[0]
    assert check_text("SECURITY.md", "whoever\n") == []
    assert len(check_text("SECURITY.md", f"{'<' * 7} HEAD\n")) == 1


def test_the_glossary_lists_the_words_that_the_rule_refuses() -> None:
    listed = (ROOT / "docs/start/glossary.md").read_text().rpartition("of the product: ")[2].strip().rstrip(".")
    words = " ".join(listed.split()).split(", ")
    assert len(words) > 10
    assert all(BANNED.fullmatch(word) for word in words)
