#!/usr/bin/env python3
"""Makes model_config.json: the newest schema of config.pbtxt, and the Triton from which on each later field is known.

    python files/schemas/make.py          looks at every tritonclient on PyPI from OLDEST on
    python files/schemas/make.py --check  exits 1 where the committed file is not what that gives

Schemas only grow, so of two versions with equal ones none between them is downloaded. A field that went away or became
another stops the program: one schema for all would no longer do.
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

# What is in it is known to every release row: the oldest is Triton 2.42.
OLDEST = "2.41.1"
OUTPUT = Path(__file__).with_name("model_config.json")
MEMBER = "tritonclient/grpc/model_config_pb2.py"


def pip(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, capture_output=True, text=True).stdout


def versions() -> list[str]:
    """Released versions from OLDEST on, oldest first."""
    (line,) = re.findall(r"^Available versions: (.*)$", pip("index", "versions", "tritonclient"), re.MULTILINE)
    found = [part for part in line.split(", ") if re.fullmatch(r"\d+\.\d+\.\d+", part)]
    return sorted((entry for entry in found if number(entry) >= number(OLDEST)), key=number)


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def descriptor(version: str, place: Path) -> FileDescriptorProto:
    """Return the schema in a wheel, which is read and never run."""
    home = place / version
    # The wheel of no platform is the small one: it lacks perf_analyzer.
    pip("download", "--no-deps", "--only-binary=:all:", "--platform=any", f"--dest={home}", f"tritonclient=={version}")
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        # At the top, or below the wheel's purelib
        (member,) = (name for name in archive.namelist() if name.endswith(MEMBER))
        tree = ast.parse(archive.read(member).decode())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "AddSerializedFile":
            (raw,) = node.args
            return FileDescriptorProto.FromString(ast.literal_eval(raw))
    raise SystemExit(f"{wheel.name}: {MEMBER} has no descriptor, expected a call of AddSerializedFile: look at the file")


def names(schema: FileDescriptorProto) -> dict[str, Any]:
    """Return {message.field or enum.VALUE: its type} of a schema."""

    def walk(prefix: str, messages: Any, enums: Any) -> Iterator[tuple[str, Any]]:
        for enum in enums:
            yield from ((f"{prefix}{enum.name}.{part.name}", part.number) for part in enum.value)
        for message in messages:
            inner = f"{prefix}{message.name}."
            yield from ((inner + field.name, (field.number, field.type, field.type_name, field.label)) for field in message.field)
            yield from walk(inner, message.nested_type, message.enum_type)

    return dict(walk("", schema.message_type, schema.enum_type))


def since(known: dict[str, dict[str, Any]], order: list[str]) -> dict[str, str]:
    """Return {name: first version with it} of every name that the oldest version lacks."""
    first: dict[str, str] = {}
    for older, newer in zip(order, order[1:]):
        for name, fact in known[older].items():
            if known[newer].get(name) != fact:
                raise SystemExit(f"{name} is {fact} in {older} and {known[newer].get(name)} in {newer}: one schema is not enough")
        first.update({name: newer for name in known[newer] if name not in known[older]})
    return dict(sorted(first.items()))


def made(place: Path) -> str:
    order = versions()
    schemas: dict[str, FileDescriptorProto] = {}

    def look(low: int, high: int) -> None:
        """Download what lies between two versions that differ."""
        for at in (low, high):
            if order[at] not in schemas:
                schemas[order[at]] = descriptor(order[at], place)
        if high - low > 1 and names(schemas[order[low]]) != names(schemas[order[high]]):
            middle = (low + high) // 2
            look(low, middle)
            look(middle, high)

    look(0, len(order) - 1)
    known = {version: names(schema) for version, schema in schemas.items()}
    looked_at = [label for label in order if label in known]
    raw = base64.b64encode(schemas[order[-1]].SerializeToString(deterministic=True)).decode()
    document = {
        "about": "Made by files/schemas/make.py out of the wheels of tritonclient. Do not edit.",
        "oldest": order[0],
        "newest": order[-1],
        "since": since(known, looked_at),
        "descriptor": [raw[at : at + 120] for at in range(0, len(raw), 120)],
    }
    return json.dumps(document, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where the file would change")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        text = made(Path(place))
    if arguments.check:
        same = OUTPUT.exists() and OUTPUT.read_text() == text
        print(f"{OUTPUT.name} is {'as made' if same else 'not what the wheels give: run this without --check'}")
        return 0 if same else 1
    OUTPUT.write_text(text)
    print(f"{OUTPUT.name}: {json.loads(text)['since']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
