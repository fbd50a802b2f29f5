#!/usr/bin/env python3
"""Write model_config.json: the newest schema of config.pbtxt, and the first version of each field that tritonclient 2.41.1 lacks.

    python files/schemas/make.py          downloads versions of tritonclient from PyPI, from 2.41.1 on
    python files/schemas/make.py --check  exits with 1 if the committed file differs

Newer schemas only add fields, so versions between two versions with equal schemas are not downloaded. If a version removes or
changes a field, the program fails, because the newest schema would no longer describe the older versions.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

# The last tritonclient before Triton 2.42, which is the Triton of the oldest release row. So the Triton of every row knows all
# fields of this version.
OLDEST = "2.41.1"
OUTPUT = Path(__file__).with_name("model_config.json")
MEMBER = "tritonclient/grpc/model_config_pb2.py"


def pip(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, text=True).stdout


def versions() -> list[str]:
    """Return the released versions from OLDEST on, oldest first."""
    (line,) = re.findall(r"^Available versions: (.*)$", pip("index", "versions", "tritonclient"), re.MULTILINE)
    released = [part for part in line.split(", ") if re.fullmatch(r"\d+\.\d+\.\d+", part)]
    return sorted((entry for entry in released if number(entry) >= number(OLDEST)), key=number)


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def descriptor(version: str, directory: Path) -> FileDescriptorProto:
    """Download the wheel of a version, and return the schema in it. The code of the wheel is read and never run."""
    home = directory / version
    # The wheel for any platform is small, because it lacks perf_analyzer.
    pip("download", "--no-deps", "--only-binary=:all:", "--platform=any", f"--dest={home}", f"tritonclient=={version}")
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        # Some wheels contain the file at the top, and others below purelib.
        (member,) = (name for name in archive.namelist() if name.endswith(MEMBER))
        tree = ast.parse(archive.read(member).decode())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile":
            (raw,) = node.args
            return FileDescriptorProto.FromString(ast.literal_eval(raw))
    raise SystemExit(
        f"{wheel.name}: {MEMBER} has no descriptor, expected a call of AddSerializedFile. "
        "Find out how this version stores the descriptor"
    )


def names(schema: FileDescriptorProto) -> dict[str, Any]:
    """Return the facts of each name in a schema.

    A name is message.field or enum.VALUE. The facts of a field are its number, type and label. The fact of an enum value is its
    number.
    """

    def walk(prefix: str, messages: Any, enums: Any) -> Iterator[tuple[str, Any]]:
        for enum in enums:
            yield from ((f"{prefix}{enum.name}.{part.name}", part.number) for part in enum.value)
        for message in messages:
            inner = f"{prefix}{message.name}."
            yield from ((inner + field.name, (field.number, field.type, field.type_name, field.label)) for field in message.field)
            yield from walk(inner, message.nested_type, message.enum_type)

    return dict(walk("", schema.message_type, schema.enum_type))


def since(known: dict[str, dict[str, Any]], order: list[str]) -> dict[str, str]:
    """Return the first version that has a name, for each field and enum value that the oldest version lacks.

    A version that changes or removes a name is refused.
    """
    first: dict[str, str] = {}
    for older, newer in zip(order, order[1:]):
        for name, fact in known[older].items():
            if known[newer].get(name) != fact:
                raise SystemExit(f"{name} was changed or removed in tritonclient {newer}, expected {fact} as in {older}")
        first.update({name: newer for name in known[newer] if name not in known[older]})
    return dict(sorted(first.items()))


def document_of(directory: Path) -> str:
    """Return the text of model_config.json."""
    order = versions()
    schemas: dict[str, FileDescriptorProto] = {}

    def download(low: int, high: int) -> None:
        """Download the two versions. If their schemas differ, also download the versions between them, by bisection."""
        for at in (low, high):
            if order[at] not in schemas:
                schemas[order[at]] = descriptor(order[at], directory)
        if high - low > 1 and names(schemas[order[low]]) != names(schemas[order[high]]):
            middle = (low + high) // 2
            download(low, middle)
            download(middle, high)

    download(0, len(order) - 1)
    known = {version: names(schema) for version, schema in schemas.items()}
    raw = base64.b64encode(schemas[order[-1]].SerializeToString(deterministic=True)).decode()
    document = {
        "about": "Made by files/schemas/make.py out of the wheels of tritonclient. Do not edit.",
        "oldest": order[0],
        "newest": order[-1],
        "since": since(known, [version for version in order if version in known]),
        "descriptor": [raw[at : at + 120] for at in range(0, len(raw), 120)],
    }
    return json.dumps(document, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if the file would change")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        text = document_of(Path(directory))
    if arguments.check:
        same = OUTPUT.exists() and OUTPUT.read_text() == text
        print(f"{OUTPUT.name} is {'in sync' if same else 'not in sync with the wheels. Run this without --check'}")
        return 0 if same else 1
    OUTPUT.write_text(text)
    print(f"{OUTPUT.name}: {json.loads(text)['since']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
