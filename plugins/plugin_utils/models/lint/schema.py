# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Triton's schema of config.pbtxt: the parsed config, the Triton that introduced each field, and the line of each field.

The schema is from the newest Triton. Therefore a field that is too new for the release is a finding of its own, not a syntax error.
"""

from __future__ import annotations

import base64
import json
import os
from functools import cache
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import effects
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import text as texts
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.backends import triton_version
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, file_error
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import with_suggestion
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.tokens import decoded, printable
from ansible_collections.npufleet.triton.plugins.plugin_utils.run.paths import COLLECTION


@cache
def load() -> Tuple[Any, Mapping[str, str]]:
    """Return (the class ModelConfig, {message.field: first Triton with the field}). The map omits fields that every Triton has."""
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError:
        raise Refusal("the controller has no protobuf. Run `pip install -r requirements.txt`") from None
    with open(os.path.join(COLLECTION, "files/schemas/model_config.json"), encoding="utf-8") as source:
        document = json.load(source)
    # The default pool can already have another version of the same file, because tritonclient registers one.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(base64.b64decode("".join(document["descriptor"])))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig")), document["since"]


def parse(text: str, name: str, path: str) -> Tuple[Any, List[texts.SourceField], List[Finding]]:
    """Return (the ModelConfig of a text, its fields, findings). `path` is the path of the config, and `name` is the model's name.

    The ModelConfig is None if the text could not be parsed to its end, or if it has an unknown value. The first finding has the
    message of Triton's parser.
    """
    config_class, _since = load()
    parsed = texts.parse(text, config_class())
    findings = []
    for problem in parsed.problems:
        expected, todo = "the text of a ModelConfig of Triton", problem.todo or "Correct the line"
        if problem.known:
            expected = "one of its fields" if problem.is_field else f"one of {', '.join(problem.known)}"
            todo = with_suggestion(problem.word, problem.known, "Correct the name, or remove it")
        actual = printable(f"{problem.note} ({problem.message})" if problem.note else problem.message)
        location = (name, path, problem.line, problem.path)
        findings.append(Finding(*location, actual, expected, todo, ERROR, "syntax", effects.REFUSES_TEXT))
    # The other rules could not interpret an unknown value of an enum or a boolean.
    unknown_value = any(problem.known and not problem.is_field for problem in parsed.problems)
    return parsed.message if parsed.complete and not unknown_value else None, parsed.fields, findings


def unknown(fields: Sequence[texts.SourceField], triton: str) -> List[Tuple[texts.SourceField, str, str]]:
    """Return (field, name, first Triton that knows the name) for each field or value that this Triton does not know."""
    newer = {name: since for name, since in load()[1].items() if triton_version(since) > triton_version(triton)}
    results: List[Tuple[texts.SourceField, str, str]] = []
    for field in fields:
        name = field.name if field.name in newer else field.value
        # A field inside an unknown field needs no separate finding.
        inner = tuple(f"{other.path}{mark}" for other, _name, _since in results for mark in ".[")
        if name in newer and not field.path.startswith(inner):
            results.append((field, name, ".".join(newer[name].split(".")[:2])))
    return results


def enum_name(message: Any, field: str) -> str:
    """Return the name of the value of an enum field, or the number of a value without a name."""
    number = getattr(message, field)
    entry = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return str(entry.name if entry else number)


def read(path: str, name: str, raw: Optional[bytes] = None) -> Tuple[Any, List[texts.SourceField], List[Finding]]:
    """Return (config or None, fields, findings) of a file. `name` is the model's name. `raw` is the content, if already read."""

    def failure(actual: str, todo: str, triton: str) -> Tuple[Any, List[texts.SourceField], List[Finding]]:
        return None, [], [file_error(name, path, actual, "a file with text", todo, "syntax", triton)]

    if raw is None:
        if os.path.isdir(path):
            return failure("it is a directory", "Write the config as a file", effects.CRASHES)
        if not os.path.isfile(path):
            return failure("it is no regular file", "Write the config as a file", effects.HANGS)
        try:
            with open(path, "rb") as source:
                raw = source.read()
        except OSError as error:
            return failure(f"it cannot be read ({error.strerror})", "Correct it", effects.REFUSES_TEXT)
    return parse(decoded(raw), name, path)
