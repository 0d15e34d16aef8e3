#!/usr/bin/env python3
"""Fails when docs/errors.md and the code disagree on the error codes or on the stable reasons.

Usage: check_errors.py REPO_ROOT. A reason is an upper-case string literal in src/reshard; in cli/, where such words are
also names of arguments, only one that follows an error code counts. The document has one table row for each.
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"//[^\n]*")
DTYPE_ROW = re.compile(r"^\s*\{DType::.*$", re.MULTILINE)  # safetensors tags look like reasons
REASON = re.compile(r'"([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*)"')
REASON_AFTER_CODE = re.compile(r'ErrorCode::k\w+,\s*"([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*)"')
NO_REASON = re.compile(r"RESHARD_.*|DCP_.*")  # environment variables; keys in files
ENUMERATOR = re.compile(r"^\s*(k[A-Z]\w+) = (\d+),", re.MULTILINE)
CODE_ROW = re.compile(r"^\| `(k\w+)` \| (\d+) \|", re.MULTILINE)
REASON_ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]+)` \|(.*)\|$", re.MULTILINE)


def reasons_in_code(root: pathlib.Path):
    found = {}
    for file in sorted((root / "src/reshard").rglob("*")):
        if file.suffix not in {".h", ".cc"}:
            continue
        path = file.relative_to(root / "src/reshard")
        text = DTYPE_ROW.sub("", COMMENT.sub("", file.read_text()))
        pattern = REASON_AFTER_CODE if path.parts[0] == "cli" else REASON
        for reason in pattern.findall(text):
            if not NO_REASON.fullmatch(reason):
                found.setdefault(reason, path)
    return found


def problems(root: pathlib.Path):
    document = (root / "docs/errors.md").read_text()
    codes = dict(ENUMERATOR.findall((root / "src/reshard/base/error.h").read_text()))
    documented_codes = dict(CODE_ROW.findall(document))
    if codes != documented_codes:
        yield f"docs/errors.md: codes differ from error.h: {sorted(codes.items() ^ documented_codes.items())}"
    rows = REASON_ROW.findall(document)
    documented = [reason for reason, _ in rows]
    code = reasons_in_code(root)
    for reason in sorted(set(code) - set(documented)):
        yield f"src/reshard/{code[reason]}: {reason} is not in docs/errors.md"
    for reason in sorted(set(documented) - set(code)):
        yield f"docs/errors.md: {reason} is not in src/reshard"
    for reason in sorted({r for r in documented if documented.count(r) > 1}):
        yield f"docs/errors.md: {reason} stands twice"
    for reason, cells in rows:
        if len([cell for cell in cells.split(" | ") if cell.strip()]) != 3:
            yield f"docs/errors.md: {reason} needs a code, a meaning and a remedy"


if __name__ == "__main__":
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent
    found = list(problems(pathlib.Path(root)))
    print("\n".join(found) or "errors ok")
    sys.exit(bool(found))
