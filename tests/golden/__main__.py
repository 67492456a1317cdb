"""``python -m tests.golden`` writes every ``expected.txt`` and adds files of changed state formats; read the diff."""

from tests.golden import state_files
from tests.golden.cases import cases


def main() -> None:
    changed = []
    for case in cases():
        text = case.text()
        if not case.expected_file.exists() or case.expected_file.read_text(encoding="utf-8") != text:
            case.expected_file.write_text(text, encoding="utf-8")
            changed.append(case.folder.name)
    print(f"{len(cases())} cases, {len(changed)} changed", *changed, sep="\n  ")
    print("files of state formats added:", ", ".join(state_files.write()) or "none")


if __name__ == "__main__":
    main()
