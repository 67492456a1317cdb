"""``python -m tests.golden``: writes every ``expected.txt`` anew; the difference is for a person to read."""

from tests.golden.cases import cases


def main() -> None:
    changed = []
    for case in cases():
        text = case.text()
        if not case.expected_file.exists() or case.expected_file.read_text(encoding="utf-8") != text:
            case.expected_file.write_text(text, encoding="utf-8")
            changed.append(case.folder.name)
    print(f"{len(cases())} cases, {len(changed)} changed", *changed, sep="\n  ")


if __name__ == "__main__":
    main()
