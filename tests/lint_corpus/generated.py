"""Cases made by rule rather than by hand: spellings of the text format, every message and every field of the schema, combinations
of platform, backend and file, ensembles, directory layouts, model.py files and environments.

Most of them name `identity`, of which the servers have a stand-in that reads no file: a verdict takes milliseconds.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from itertools import product
from typing import Any

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from building import PROGRAM, Files, Library, Link, Pipe, config, control, model, sample, state, tensor, warm

Case = tuple[str, Files]
IDENTITY = 'backend: "identity"'


def plain(more: str = "", **parts: str) -> str:
    """A config of the backend that reads no file."""
    return config(more, **{"head": IDENTITY, **parts})


def bare(text: str | bytes, **files: Any) -> Files:
    """A model `m` of this config with an empty version."""
    return {"m/config.pbtxt": text, "m/1/": "", **{f"m/{path}": content for path, content in files.items()}}


def each(*texts: str) -> Iterator[Case]:
    """A right config with each of these beside. What backends read is for Python's: a stand-in reads nothing."""
    for text in texts:
        read = text.startswith(("model_warmup", "batch_", "sequence_batching { state"))
        yield "", model(config(text)) if read else bare(plain(text))


def spellings() -> Iterator[Case]:
    """Separators, comments, quotes, escapes and delimiters, right and wrong."""
    whole = plain()
    for text in (
        "",
        "\n",
        "# nothing\n",
        "# nothing",
        whole.replace("\n", " "),
        whole.replace("\n", "\r"),
        whole.replace(" ", ""),
        whole.replace(" ", "\t"),
        whole.replace(" ", "\f\v"),
        whole.replace("\n", ",\n", 1),
        whole.replace("\n", ";\n", 1),
        whole.replace("\n", ";;\n", 1),
        whole.replace("\n", ",;\n", 1),
        whole.replace(": ", " : "),
        whole.replace(": ", "\n:\n"),
        whole.replace(": ", "# c\n:# c\n"),
        whole.replace(": ", "::", 1),
        whole.replace("{", "<").replace("}", ">"),
        whole.replace("}", ">", 1),
        whole.replace("{", "<", 1),
        whole.replace("{", "{{", 1),
        whole.replace("}", "}}", 1),
        whole.replace("}", "", 1),
        whole.replace("] }", "]", 1),
        whole.replace("input [", "input: [").replace("output [", "output: ["),
        whole.replace("input [", "input : [ # c\n"),
        whole.replace("input [ {", "input: {").replace("} ]\noutput", "}\noutput"),
        whole.replace("input [ {", "input {").replace("} ]\noutput", "},\noutput"),
        whole.replace("input [ {", "input [ [ {").replace("} ]\noutput", "} ] ]\noutput"),
        whole.replace("} ]\noutput", "} };\noutput"),
        whole.replace("[ 3 ]", "3"),
        whole.replace("[ 3 ]", "[3]"),
        whole.replace("[ 3 ]", "[3,3]"),
        whole.replace("[ 3 ]", "[3 3]"),
        whole.replace("[ 3 ]", "[3;3]"),
        whole.replace("[ 3 ]", "[,3]"),
        whole.replace("[ 3 ]", "[3,,3]"),
        whole.replace("[ 3 ]", "[]"),
        whole.replace("[ 3 ]", "[] dims: 3"),
        whole.replace("[ 3 ]", "3 dims: [ 2 ] dims: 1"),
        whole.replace("[ 3 ]", "3, 3"),
        whole.replace("dims: [", "dims ["),
        whole.replace("dims: [", "dims {"),
        whole.replace('"', "'"),
        whole.replace('"A"', "'A\""),
        whole.replace('"A"', "\"\" 'A' ''"),
        whole.replace('"identity"', '"iden" "tity"'),
        whole.replace('"identity"', "'iden'\n  # c\n  \"tity\""),
        whole.replace('"identity"', '"iden", "tity"'),
        whole.replace('"identity"', '"iden" + "tity"'),
        whole.replace('"identity"', "`identity`"),
        whole.replace('"identity"', '"""identity"""'),
        whole.replace('"identity"', '"identity'),
        whole.replace('"identity"', '"identity\\"'),
        whole.replace('"identity"', '"\\x69\\144entity"'),
        whole.replace('"identity"', '"\\u0069dentity"'),
        whole.replace('"identity"', '"\\U00000069dentity"'),
        whole.replace('"identity"', '"iden\\\ntity"'),
        whole.replace("backend:", "Backend:"),
        whole.replace("backend:", "BACKEND:"),
        whole.replace("backend:", "1:"),
        whole.replace("backend:", "19:"),
        whole.replace("backend:", '"backend":'),
        whole.replace("backend:", "backend"),
        whole.replace("backend:", "backend ="),
        whole.replace("backend:", "inference.ModelConfig.backend:"),
        whole.replace("backend:", "[inference.backend]:"),
        "[a.b.c]: 1 " + whole,
        "[a.b.c] { x: 1 } " + whole,
        "[type.googleapis.com/inference.ModelConfig] { } " + whole,
        "{ " + whole + " }",
        "{ " + whole,
        whole + " }",
        whole + "\0",
        "#\0\n" + whole,
        "\0" + whole,
        "# \x01\n" + whole,
        "\x01" + whole,
        "\x7f" + whole,
        "\u00a0" + whole,
        "\ufeff" + whole,
        "# \ufeff\u3000\n" + whole,
        "//\n" + whole,
        whole + "/* c */",
        whole + "-- c",
        whole + "% c",
        whole + "; c",
        whole + "#",
        "%YAML 1.2\n" + whole,
        "---\n" + whole,
        "syntax: 'proto3'\n" + whole,
        "max_batch_size: 4\nmax_batch_size: 4\nbackend: 'identity'",
        "max_batch_size: 0\nmax_batch_size: 4\nbackend: 'identity'",
        "backend: '' backend: 'identity'",
        "backend: 'identity' backend: 'identity'",
        "backend: 'identity' backend: ''",
        whole.replace('name: "A"', 'name: "" name: "A"'),
        whole.replace('name: "A"', 'name: "A" name: "A"'),
        whole.replace("data_type: TYPE_FP32", "data_type: TYPE_INVALID data_type: TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data_type: 0 data_type: TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data_type: TYPE_FP32 data_type: TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data_type: 11"),
        whole.replace("data_type: TYPE_FP32", "data_type: 0xB"),
        whole.replace("data_type: TYPE_FP32", "data_type: 013"),
        whole.replace("data_type: TYPE_FP32", "data_type: 11.0"),
        whole.replace("data_type: TYPE_FP32", "data_type: -11"),
        whole.replace("data_type: TYPE_FP32", "data_type: DataType.TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data_type: TYPE_FP32_"),
        whole.replace("data_type: TYPE_FP32", "data_type: inference.TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data_type: [ TYPE_FP32 ]"),
        whole.replace("data_type: TYPE_FP32", "data_type { TYPE_FP32 }"),
        whole.replace("data_type: TYPE_FP32", "data_type TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "dataType: TYPE_FP32"),
        whole.replace("data_type: TYPE_FP32", "data-type: TYPE_FP32"),
    ):
        yield "", bare(text)
    yield "", bare(whole.encode("utf-16"))
    yield "", bare(whole.encode("utf-16-le"))
    yield "", bare(b"\xff" + whole.encode())
    yield "", bare(b"# \xff\xfe\n" + whole.encode())
    yield from (("", bare(b'parameters { key: "k" value { string_value: "' + raw + f'" }} }}\n{whole}'.encode())) for raw in RAW)
    yield from each(
        "version_policy { all { } all { } }",
        "version_policy { all { } } version_policy { all { } }",
        "version_policy { all { } latest { } }",
        "version_policy { } version_policy { }",
        "version_policy: { all: { } }",
        "version_policy [ { all { } } ]",
        "version_policy: [ ]",
        "version_policy { all: true }",
        "version_policy { all }",
        "version_policy: all",
        "version_policy { specific { versions: 1 versions: 1 } }",
        "version_policy { specific: { versions: [ 1 ], versions: [ ], } };",
        "dynamic_batching: { }",
        "dynamic_batching { };",
        "dynamic_batching < >,",
        "dynamic_batching { >",
        "dynamic_batching",
        "dynamic_batching:",
        "dynamic_batching { } dynamic_batching { }",
        "dynamic_batching { preferred_batch_size: [ ] }",
        "dynamic_batching { preferred_batch_size: [ 1, 2, 4 ] max_queue_delay_microseconds: 100 }",
        "dynamic_batching { preferred_batch_size [ 1 ] }",
        "dynamic_batching { preferred_batch_size: 1 preferred_batch_size: 2 }",
        "dynamic_batching { preferred_batch_size: { 1 } }",
        "instance_group [ ]",
        "instance_group: [ { }, { } ]",
        "instance_group [ { } { } ]",
        "instance_group [ { } ; { } ]",
        "instance_group [ { count: 1 }, < count: 1 > ]",
        "instance_group { } instance_group { }",
        "instance_group { count: 1, kind: KIND_CPU; }",
        "instance_group { count: 1,, kind: KIND_CPU }",
        "instance_group [ { kind: KIND_CPU count: 1 } ] ;",
        "instance_group ( { kind: KIND_CPU } )",
        'parameters { key: "a" value { string_value: "" } } parameters { key: "a" value { string_value: "b" } }',
        'parameters [ { key: "a" value { string_value: "x" } }, { key: "b" value { } } ]',
        'parameters { key: "a" key: "a" value { } }',
        'parameters { key: "" key: "a" value { } }',
        'parameters { value { } value { } key: "a" }',
        'parameters { key: "a" value: { string_value: "x" } };',
        'parameters { key: "a" value < string_value: "x" > }',
        'parameters { "a": "b" }',
        'parameters: { key: a value: { string_value: "b" } }',
        'parameters { key: "a" value { string_value: 1 } }',
        'parameters { key: "a" value { string_value: true } }',
        'parameters { key: "a" value { string_value: "x" string_value: "x" } }',
        "parameters { }",
        "parameters [ ]",
        'parameters { key: "a" }',
        'parameters { value { string_value: "a" } }',
        'metric_tags { key: "a" value: "b" } metric_tags { key: "a" value: "c" }',
        'metric_tags { key: "" value: "" }',
        "metric_tags { }",
        'metric_tags { key: "a" }',
        'metric_tags { key: "a", value: "b" }',
    )
    yield from each(*(f"instance_group {{ count: {number} }}" for number in INTEGERS))
    yield from each(*(f"dynamic_batching {{ max_queue_delay_microseconds: {number} }}" for number in INTEGERS))
    yield from each(*(f"sequence_batching {{ direct {{ minimum_slot_utilization: {number} }} }}" for number in REALS))
    yield from each(*(f"model_transaction_policy {{ decoupled: {word} }}" for word in BOOLEANS))
    yield from each(*(f'parameters {{ key: "k" value {{ string_value: "{text}" }} }}' for text in ESCAPED))


RAW = (b"\xff", b"\xe9", b"\xed\xa0\x80", b"\xc0\x80", "\u00e9\u3000\U0001f600".encode(), b"\x01", b"\t", b"\r", b"\x7f")
INTEGERS = (
    *(
        "1",
        "01",
        "0x1",
        "0X1",
        "0x01",
        "-0",
        "+1",
        "1.",
        "1.0",
        "1e0",
        "1f",
        "1L",
        "1u",
        "0b1",
        "0o1",
        "1_",
        "1'",
        '"1"',
        "- 1",
        "(1)",
    ),
    *("0x", "0xg", "09", "true", "one", "1 .", "1,", "1;", "[1]", "--1", "0x7", "00001", "1#", "1 # c", "1//", "1a", "1-"),
    *("2147483648", "-2147483648", "-2147483649", "18446744073709551616", "99999999999999999999", "0x100000000", "inf", ".1"),
)
REALS = (
    *("0", "1", "0.5", ".5", "1.", "1e0", "1E-1", "1e+0", "0.5f", "0.5F", "1f", "5e-1f", "0.5d", "0.5L", "1e", "1e-", "-0", "-0.0"),
    *(
        "-.0",
        "nan",
        "-nan",
        "NaN",
        "inf",
        "-inf",
        "infinity",
        "Infinity",
        "0x1",
        "01",
        "00",
        "1e400",
        "1e-400",
        "1.0.0",
        "1..0",
        "+0.5",
    ),
    *(
        '"0.5"',
        "half",
        "1,0",
        "0,5",
        "0 .5",
        "5e-1",
        "0.5.",
        "1_0",
        "99999999999999999999",
        "2",
        "-1",
        "1.0000001",
        "true",
        "- 0.5",
    ),
)
BOOLEANS = (
    *(
        "true",
        "false",
        "True",
        "False",
        "t",
        "f",
        "1",
        "0",
        "TRUE",
        "FALSE",
        "yes",
        "no",
        "on",
        "2",
        "-1",
        "01",
        "00",
        "0x1",
        "0x0",
    ),
    *("1.0", '"true"', "T", "F", "tRue", "true false", "[ true ]", "{ }", "", "true,", "true;", "null", "None"),
)
ESCAPED = (
    *(
        "\\a\\b\\f\\n\\r\\t\\v",
        "\\\\",
        "\\'",
        '\\"',
        "\\?",
        "\\0",
        "\\1",
        "\\12",
        "\\123",
        "\\1234",
        "\\400",
        "\\777",
        "\\8",
        "\\9",
    ),
    *("\\x", "\\x4", "\\x41", "\\x414", "\\xg", "\\X41", "\\u", "\\u00e", "\\u00e9", "\\U000000e9", "\\U0010ffff", "\\U00110000"),
    *(
        "\\U00200000",
        "\\Uffffffff",
        "\\ud83d\\ude00",
        "\\ud83d",
        "\\ude00",
        "\\q",
        "\\ ",
        "\\/",
        "\\$",
        "\\{",
        "$$X",
        "{{ x }}",
        "%s",
    ),
    *("\\N", "\\e", "\\c", "\\xff", "\\377", "\\xc3\\xa9", "C:\\\\x", "C:\\\\", "^\\\\d+$", "^\\d+$", "'", "#", "\\\\\\"),
)


def _walk(known: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of fields, from the top to each field of the schema."""
    for field in known.fields:
        yield (*path, field)
        if field.message_type is not None:
            yield from _walk(field.message_type, (*path, field))


def _at(path: tuple[Any, ...], value: str) -> str:
    """A text with this value for the last field of a path, and each field above it as a message."""
    text = f"{path[-1].name}{'' if path[-1].message_type is not None else ':'} {value}"
    for field in reversed(path[:-1]):
        text = f"{field.name} {{ {text} }}"
    return text


def fields() -> Iterator[Case]:
    """Every message of the schema left empty, alone and among others; every scalar with plain and odd values."""
    kind, since = schema.load()
    for path in _walk(kind.DESCRIPTOR):
        if path[0].name in ("name", "backend", "platform", "input", "output") and len(path) == 1 and path[0].message_type is None:
            continue
        values = ["{ }"]
        if path[-1].message_type is None:
            values = _values(path[-1])
        beside = {"ensemble_scheduling": "", "input": "", "output": ""}.get(path[0].name)
        for value in values:
            text = _at(path, value)
            if beside is None:
                yield (
                    "",
                    model(config(text, batch="" if path[0].name == "max_batch_size" else "4").replace("max_batch_size: \n", "\n")),
                )
            elif path[0].name == "ensemble_scheduling":
                yield "", bare(config(text, head='platform: "ensemble"'))
            else:
                yield "", model(f'backend: "python"\nmax_batch_size: 4\n{text}\n')
                inner = text.partition("{")[2].rpartition("}")[0]
                if len(path) > 1:
                    yield "", model(config(a=f'{{ name: "A" {_unnamed(inner, path)} {inner} }}'))
    yield from each(*(f"{name.rpartition('.')[2]} {{ }}" for name in since if name.count(".") == 1))
    for name in ("batch_input", "batch_output", "control_input", "state", "model_warmup", "instance_group", "input", "output"):
        yield from each(f"{name} [ {{ }}, {{ }} ]", f"{name} [ ]")


def _unnamed(inner: str, path: tuple[Any, ...]) -> str:
    """What an input needs beside the field of a path."""
    needed = {"data_type": "data_type: TYPE_FP32", "dims": "dims: 3"}
    return (
        " ".join(text for name, text in needed.items() if path[1].name != name)
        if path[1].name != "name"
        else "data_type: TYPE_FP32"
    )


def _values(field: Any) -> list[str]:
    """Values for a scalar."""
    if field.cpp_type == field.CPPTYPE_STRING:
        return ['""', '"x"', '"A"']
    if field.cpp_type == field.CPPTYPE_BOOL:
        return ["true", "false"]
    if field.cpp_type == field.CPPTYPE_ENUM:
        return [value.name for value in field.enum_type.values] + ["99", "-1"]
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return ["0", "0.5", "-1"]
    # Not more, as some are counts of instances
    return ["0", "1", "3"] + (["-1"] if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) else [])


def schedulers() -> Iterator[Case]:
    """Batchers, sequences, states, warm-ups, cache, instances and agents in combination."""
    batching = (
        "",
        "dynamic_batching { }",
        "sequence_batching { }",
        "sequence_batching { oldest { } }",
        "sequence_batching { direct { } }",
    )
    for batch, text, cache, decoupled in product("04", batching, ("", CACHE), ("", DECOUPLED)):
        yield "", bare(plain(f"{text} {cache} {decoupled}", batch=batch))
    for batch, sizes in product("04", ("0", "1", "4", "5", "4, 1", "1, 1", "-1", "")):
        yield "", bare(plain(f"dynamic_batching {{ preferred_batch_size: [ {sizes} ] }}", batch=batch))
        yield "", bare(plain(f"sequence_batching {{ oldest {{ preferred_batch_size: [ {sizes} ] }} }}", batch=batch))
    for levels, default, key, order, action in product(
        "012", "012", ("", "0", "1", "3"), ("", ORDERED), ("", DELAYED, "timeout_action: DELAY")
    ):
        policy = f"priority_queue_policy {{ key: {key} value {{ {action} }} }}" if key else f"default_queue_policy {{ {action} }}"
        yield from each(f"dynamic_batching {{ priority_levels: {levels} default_priority_level: {default} {policy} {order} }}")
    kinds = ("START", "END", "READY", "CORRID")
    values = (
        "",
        "int32_false_true: [ 0, 1 ]",
        "fp32_false_true: [ 0, 1 ]",
        "bool_false_true: [ false, true ]",
        "data_type: TYPE_INT64",
    )
    odd = (
        "int32_false_true: [ 0 ]",
        "int32_false_true: [ 0, 1 ] data_type: TYPE_INT32",
        "data_type: TYPE_INT8",
        "data_type: TYPE_STRING",
    )
    yield from each(*(control(f"CONTROL_SEQUENCE_{kind} {value}") for kind, value in product(kinds, values + odd)))
    one = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"
    two = "control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }"
    yield from each(
        f'sequence_batching {{ control_input {{ name: "S" {one} {two} }} }}',
        f'sequence_batching {{ control_input [ {{ name: "S" {one} }}, {{ name: "S" {two} }} ] }}',
        f'sequence_batching {{ control_input [ {{ name: "S" {one} }}, {{ name: "E" {two} }} ] }}',
        f'sequence_batching {{ control_input [ {{ name: "S" {one} }}, {{ name: "E" {one} }} ] }}',
        f'sequence_batching {{ control_input {{ name: "A" {one} }} }}',
        'sequence_batching { control_input { name: "S" } }',
        "sequence_batching { max_sequence_idle_microseconds: 1 }",
        "sequence_batching { max_sequence_idle_microseconds: 0 }",
        "sequence_batching { iterative_sequence: true }",
        "sequence_batching { oldest { max_candidate_sequences: 0 } }",
        "sequence_batching { oldest { max_candidate_sequences: -1 } }",
        "sequence_batching { direct { minimum_slot_utilization: 1 } oldest { } }",
        "dynamic_batching { } sequence_batching { }",
        "sequence_batching { generative_sequence: true }",
    )
    for batch, dims, of, kind in product("04", ("2", "1", "-1", "2, 2", ""), ("2", "-1", ""), ("zero_data: true", "")):
        yield "", model(config(state(kind, dims=dims, of=of), batch=batch))
    yield from each(
        state("zero_data: false"),
        state('data_file: ""'),
        state('data_file: "../x"'),
        state("zero_data: true", dtype="STRING"),
        state("zero_data: true", name=""),
        'sequence_batching { state { input_name: "A" output_name: "B" data_type: TYPE_FP32 dims: 3 } }',
        'sequence_batching { state { input_name: "I" output_name: "O" dims: 3 } }',
        'sequence_batching { state { input_name: "I" output_name: "O" data_type: TYPE_FP32 } }',
        'sequence_batching { state { input_name: "I" output_name: "I" data_type: TYPE_FP32 dims: 3 } }',
        'sequence_batching { state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 3 '
        "use_same_buffer_for_input_output: true } }",
        'sequence_batching { state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 3 use_growable_memory: true } }',
        'sequence_batching { state [ { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 3 }, '
        '{ input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 3 } ] }',
    )
    for size, text in product(
        (0, 1, 4, 5), ("zero_data: true", "random_data: true", "zero_data: false", 'input_data_file: ""', "")
    ):
        yield from each(warm(sample(text), size))
    yield from each(
        *(
            warm(sample("zero_data: true", dims, dtype))
            for dims, dtype in product(("3", "4", "0", "-1", ""), ("FP32", "INT64", "STRING"))
        ),
        warm(sample("zero_data: true")) + " " + warm(sample("zero_data: true")),
        warm(sample("zero_data: true") + " " + sample("zero_data: true", name="C")),
        warm(sample("zero_data: true", name="C")),
        'model_warmup { batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }',
        'model_warmup { name: "w" batch_size: 1 count: 3 '
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }',
        'model_warmup { name: "w" batch_size: 1 }',
        'model_warmup { name: "w" }',
        warm('inputs { key: "A" value { zero_data: true dims: 3 } }'),
        warm('inputs { key: "A" value { data_type: TYPE_FP32 zero_data: true random_data: true dims: 3 } }'),
    )
    yield "", model(config(warm(sample("zero_data: true"), 1), batch="0"))
    yield "", model(config(warm(sample("zero_data: true"), 2), batch="0"))
    yield "", model(config(warm(sample('input_data_file: "d"'))), **{"warmup/d": bytes(12)})
    yield "", model(config(warm(sample('input_data_file: "d"'))), **{"warmup/d": bytes(13)})
    yield "", model(config(warm(sample('input_data_file: "d"'))), **{"warmup/d": bytes(3)})
    yield "", model(config(warm(sample('input_data_file: "d"'))), d=bytes(12))
    yield "", model(config(warm(sample('input_data_file: "../d"'))), d=bytes(12))
    yield "", model(config(warm(sample('input_data_file: "x/d"'))), **{"warmup/x/d": bytes(12)})
    yield "", model(config(warm(sample('input_data_file: "d"', dtype="STRING"))), **{"warmup/d": b"\3\0\0\0abc" * 3})
    yield (
        "",
        model(
            config(warm(sample('input_data_file: "d"', dtype="STRING"), 1), a=tensor("A", dtype="STRING")),
            **{"warmup/d": b"\3\0\0\0abc" * 3},
        ),
    )
    for kind, count in product(("", "KIND_AUTO", "KIND_CPU", "KIND_MODEL", "KIND_GPU", "7", "-1"), ("", "0", "-1", "2")):
        text = f"{f'kind: {kind}' if kind else ''} {f'count: {count}' if count else ''} "
        yield from each(f"instance_group {{ {text} }}")
    yield from each(
        *(
            f"instance_group {{ kind: {kind} gpus: [ {gpus} ] }}"
            for kind, gpus in product(("KIND_AUTO", "KIND_CPU", "KIND_MODEL"), ("", "0", "0, 1", "-1"))
        ),
        *(f'instance_group {{ profile: "{profile}" }}' for profile in ("", "0", "x")),
        'instance_group { host_policy: "x" }',
        'instance_group { name: "a" } instance_group { name: "a" }',
        'instance_group { name: "a b" } instance_group { name: "m_0" }',
        "instance_group { secondary_devices { } }",
        "instance_group { secondary_devices [ { kind: KIND_NVDLA device_id: 0 } ] }",
        "instance_group { rate_limiter { } }",
        "instance_group { rate_limiter { resources { } } }",
        'instance_group { rate_limiter { resources { name: "r" } } }',
        'instance_group { rate_limiter { resources { name: "r" count: 0 } } }',
        'instance_group { rate_limiter { resources { name: "r" count: -1 } } }',
        'instance_group { rate_limiter { resources { name: "r" count: 2 } resources { name: "r" count: 3 } } }',
        'instance_group { rate_limiter { resources { name: "r" count: 2 } priority: 2 } count: 2 }',
        'instance_group { rate_limiter { resources { name: "r" global: true count: 1 } } }',
        'instance_group { rate_limiter { resources { name: "r" global: true count: 1 } } } '
        'instance_group { rate_limiter { resources { name: "r" count: 1 } } }',
        *(f"model_repository_agents {{ {text} }}" for text in AGENTS),
        *(f"response_cache {{ enable: {word} }}" for word in ("true", "false")),
        'model_operations { op_library_filename: "gone.so" }',
        'cc_model_filenames { key: "7.0" value: "gone" }',
        "optimization { graph { level: 1 } }",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
        "optimization { cuda { graphs: true graph_spec { batch_size: 1 } } }",
        "optimization { gather_kernel_buffer_threshold: 1 eager_batching: true }",
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "gone" } }',
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "" } }',
        'sequence_batching { } parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "gone" } }',
    )
    for one, two in product(("input", "output"), repeat=2):
        extra = (
            f'batch_{one} {{ kind: BATCH_ELEMENT_COUNT target_name: "T" data_type: TYPE_INT32 source_input: "A" }}'
            if one == "input"
            else ""
        )
        yield from each(f"{extra} batch_{two} {{ }}")
    yield from each(
        *(
            f'batch_input {{ kind: {kind} target_name: {names} data_type: TYPE_{dtype} source_input: "A" }}'
            for kind, names, dtype in product(BATCHES, ('"T"', "[ ]", '[ "T", "U" ]'), ("INT32", "FP32", "INT64"))
        ),
        *(
            f'batch_output {{ {kind} {names} source_input: "A" }}'
            for kind, names in product(
                ("", "kind: BATCH_SCATTER_WITH_INPUT_SHAPE", "kind: 3"),
                ("", 'target_name: "B"', "target_name: [ ]", 'target_name: ""'),
            )
        ),
        'batch_input { target_name: "A" data_type: TYPE_FP32 source_input: "A" }',
        'batch_input { target_name: "T" data_type: TYPE_FP32 source_input: [ ] }',
        'batch_output { target_name: "B" source_input: [ "A", "A" ] }',
    )
    for dims, shape, batch in product(("1", "4", "-1", "2, -1", "-1, -1"), ("", "1", "4", "2, 2", "-1", "-1, 2", "0", "-2"), "04"):
        yield "", bare(plain(a=tensor("A", dims, more=f"reshape {{ shape: [ {shape} ] }}"), batch=batch))
        yield "", bare(plain(b=tensor("B", dims, more=f"reshape {{ shape: [ {shape} ] }}"), batch=batch))
    for fmt, dims in product(("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW", "9"), ("3", "1, 2, 3", "1, 2, 3, 4", "-1, -1, 3")):
        yield "", bare(plain(a=tensor("A", dims, more=f"format: {fmt}")))
    for text in ("is_shape_tensor: true", "is_shape_tensor: false", "allow_ragged_batch: true", "optional: true", "reshape { }"):
        yield "", bare(plain(a=tensor("A", more=text)))
        yield "", bare(plain(a=tensor("A", "1", more=text), batch="0"))
    for text in (
        "is_shape_tensor: true",
        'label_filename: ""',
        'label_filename: "l"',
        'label_filename: "1/l"',
        'label_filename: "/etc/hosts"',
    ):
        yield "", bare(plain(b=tensor("B", more=text)), **{"1/l": "a\n"})
    for label in ("", "a", "a\nb\nc\n", b"\xff\n", "\n\n\n"):
        yield "", bare(plain(b=tensor("B", more='label_filename: "l"')), l=label)
    yield "", bare(plain(b=tensor("B", more='label_filename: "l"')), **{"l/": ""})
    yield "", bare(plain(b=tensor("B", more='label_filename: "l"')), l=Link("gone"))
    yield "", bare(plain(b=tensor("B", more='label_filename: "l"')), l=Link("k"), k="a\n")
    yield "", bare(plain(b=tensor("B", more='label_filename: "../l"')), **{"/l": ""} if False else {"l": "a\n"})
    yield "", bare(plain(a=f"{tensor('A')}, {tensor('A')}"))
    yield "", bare(plain(b=f"{tensor('A')}, {tensor('B')}"))
    yield "", bare(plain(a=f"{tensor('A')}, {tensor('A', '4')}"))
    for name in ("", "a b", "a/b", "\\n", "a.b", "\\u00e9", "a" * 300, "A__0", "{{ x }}"):
        yield "", bare(plain(a=tensor(name)))
    for batch in ("-1", "0", "1", "2147483647", "-2147483648"):
        yield "", bare(plain(batch=batch))
    for name in ('"m"', '""', '"M"', '"m "', '"other"', '"m" "m"'):
        yield from each(f"name: {name}")


CACHE, DECOUPLED = "response_cache { enable: true }", "model_transaction_policy { decoupled: true }"
ORDERED, DELAYED = "preserve_ordering: true", "timeout_action: DELAY default_timeout_microseconds: 9"
AGENTS = (
    "",
    "agents { }",
    'agents { name: "" }',
    'agents { name: "checksum" }',
    'agents { name: "gone" }',
    'agents [ { name: "checksum" }, { name: "x" } ]',
    "agents [ ]",
)
BATCHES = (
    *("BATCH_ELEMENT_COUNT", "BATCH_ACCUMULATED_ELEMENT_COUNT", "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"),
    *("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN", "9"),
)


PLATFORMS = (
    "",
    "onnxruntime_onnx",
    "pytorch_libtorch",
    "tensorrt_plan",
    "tensorflow_graphdef",
    "tensorflow_savedmodel",
    "custom",
    "python",
    "torch_aoti",
    "libtorch",
    "ensemble",
    "openvino",
    "x",
)
BACKENDS = ("", "onnxruntime", "pytorch", "tensorflow", "openvino", "identity", "dali", "fil")
NAMED = (
    "model.onnx",
    "model.pt",
    "model.plan",
    "model.graphdef",
    "model.savedmodel/x",
    "model.xml",
    "model.py",
    "model.pt2",
    "model.dali",
    "x.bin",
)

# Files of backends that write the config themselves, which a stand-in does not
COMPLETED = ("model.onnx", "model.plan", "model.graphdef", "model.savedmodel/x", "model.xml", "model.dali")


def identities() -> Iterator[Case]:
    """Platform, backend, file names, and the name of the model, from which Triton takes the backend."""

    def made(platform: str, backend: str, file: str = "", more: str = "") -> str:
        head = (f'platform: "{platform}"\n' if platform else "") + (f'backend: "{backend}"\n' if backend else "")
        return config((f'default_model_filename: "{file}"\n' if file else "") + more, head=head)

    every = {f"m/1/{file}": PROGRAM for file in NAMED}
    for platform, backend in product(PLATFORMS, BACKENDS):
        yield "", {"m/config.pbtxt": made(platform, backend), **(every if platform or backend else {"m/1/": ""})}
    for file in NAMED:
        name = file.partition("/")[0]
        yield "", {"m/config.pbtxt": made("", ""), f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": made("", "", name), f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": made("x", ""), f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": made("x", "", name), f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": made("", "identity", name), f"m/1/{file}": PROGRAM}
        if file not in COMPLETED:
            yield "", {f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": "", f"m/1/{file}": PROGRAM}
        yield "", {"m/config.pbtxt": made("", ""), f"m/3/{file}": PROGRAM, "m/2/x": ""}
        yield "", {"m/config.pbtxt": made("", ""), f"m/1/{file}": PROGRAM, "m/.git/x": ""}
        yield "", {"m/config.pbtxt": made("", ""), f"m/1/{name}/": ""}
    for name in ("m.identity", "m.", "m.x.identity", ".identity", "identity", "m.python"):
        yield "", {f"{name}/config.pbtxt": made("", ""), f"{name}/1/": ""}
        yield "", {f"{name}/config.pbtxt": made("", "identity"), f"{name}/1/": ""}
        if not name.endswith("onnxruntime"):
            yield "", {f"{name}/1/x": ""}
    for runtime, backend in product(
        ("", "libtriton_identity.so", "libtriton_onnxruntime.so", "libtriton_python.so", "gone.so", "x"),
        ("identity", "onnxruntime", "pytorch"),
    ):
        yield "", {"m/config.pbtxt": made("", backend, more=f'runtime: "{runtime}"'), **every}
    yield "", bare(made("", "identity", more='runtime: "model.py"'))
    # A library that the model brings
    for place in ("", "1/"):
        yield "", bare(made("", "ours"), **{f"{place}libtriton_ours.so": Library()})
        yield "", bare(made("", "ours", more='runtime: "other.so"'), **{f"{place}other.so": Library()})
    yield "", bare(made("", "ours"), **{"lib/libtriton_ours.so": Library()})
    yield "", bare(made("", "ours"), **{"libtriton_ours.so": "no library"})
    yield "", bare(made("", "ours"), **{"2/libtriton_ours.so": Library(), "1/x": ""})


def _steps(*steps: str) -> str:
    return f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}"


def step(name: str, reads: dict[str, str], writes: dict[str, str], version: str = "-1", more: str = "") -> str:
    """A step of an ensemble, its maps as {name of the model: tensor of the ensemble}."""
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in reads.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in writes.items()]
    number = f"model_version: {version}" if version else ""
    return f'{{ model_name: "{name}" {number} {" ".join(maps)} {more} }}'


def meetings() -> Iterator[Case]:
    """Ensembles: flows, versions, batches, shapes, reshapes, optional inputs, decoupled steps and ensembles in ensembles."""

    def made(
        text: str, a: str = tensor("A"), b: str = tensor("B"), batch: str = "4", head: str = 'platform: "ensemble"', **models: str
    ) -> Files:
        files: dict[str, Any] = {"m/config.pbtxt": config(text, a, b, batch, head), "m/1/": ""}
        for name, content in {"s": plain(), "t": plain(), **models}.items():
            if content:
                files |= {f"{name}/config.pbtxt": content, f"{name}/1/": ""}
        return files

    s, t = step("s", {"A": "A"}, {"B": "x"}), step("t", {"A": "x"}, {"B": "B"})
    yield "", made(_steps(s, t))
    yield "", made(_steps(t, s))
    for version in ("", "0", "1", "2", "-1", "-2", "01", "-01"):
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"}, version)))
    for policy in (
        "version_policy { all { } }",
        "version_policy { latest { num_versions: 2 } }",
        "version_policy { specific { versions: 7 } }",
    ):
        yield "", {**made(_steps(step("s", {"A": "A"}, {"B": "B"}, "1")), s=plain(policy)), "s/7/": ""}
        yield "", {**made(_steps(step("s", {"A": "A"}, {"B": "B"}, "7")), s=plain(policy)), "s/7/": ""}
    for batch, other in product("0148", repeat=2):
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), batch=batch, s=plain(batch=other))
        yield "", made(_steps(s, t), batch=batch, s=plain(batch=other))
    shapes = ("3", "-1", "3, 1", "1, 3", "-1, 3")
    for mine, theirs, batch, other in product(shapes, shapes, "04", "04"):
        yield (
            "",
            made(
                _steps(step("s", {"A": "A"}, {"B": "B"})),
                a=tensor("A", mine),
                batch=batch,
                s=plain(a=tensor("A", theirs), batch=other),
            ),
        )
    for mine, theirs in product(("FP32", "INT32", "STRING"), repeat=2):
        yield "", made(_steps(s, t), s=plain(b=tensor("B", dtype=mine)), t=plain(a=tensor("A", dtype=theirs)))
    for shape in ("3", "1, 3", "3, 1", ""):
        extra = f"reshape {{ shape: [ {shape} ] }}"
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), a=tensor("A", more=extra))
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=plain(a=tensor("A", more=extra)))
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=tensor("B", more=extra))
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), a=tensor("A", shape or "3", more="reshape { shape: [ 3 ] }"))
    flows = (
        [step("s", {"A": "A"}, {"B": "A"})],
        [step("s", {"A": "A"}, {"B": "B"}), step("t", {"A": "A"}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": "B"}), step("t", {"A": "B"}, {"B": "y"})],
        [step("s", {"A": "A"}, {"B": "B"}), step("t", {"A": "B"}, {"B": "A"})],
        [step("s", {"A": "B"}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": "x"}), step("s", {"A": "x"}, {"B": "B"})],
        [step("s", {"A": "y"}, {"B": "x"}), step("t", {"A": "x"}, {"B": "y"}), step("s", {"A": "A"}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": "x"}), step("t", {"A": "A"}, {"B": "B"})],
        [step("s", {"A": "A", "Z": "A"}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": "B", "Z": "z"})],
        [step("s", {"A": "A"}, {"Z": "B"})],
        [step("s", {"Z": "A"}, {"B": "B"})],
        [step("s", {}, {"B": "B"})],
        [step("s", {"A": "A"}, {})],
        [step("s", {"A": ""}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": ""})],
        [step("s", {"": "A"}, {"B": "B"})],
        [step("", {"A": "A"}, {"B": "B"})],
        [step("gone", {"A": "A"}, {"B": "B"})],
        [step("m", {"A": "A"}, {"B": "B"})],
        [step("s", {"A": "A"}, {"B": "B"}, more='model_namespace: "x"')],
        [step("s", {"A": "A"}, {"B": "B"}, more='model_namespace: ""')],
        [step("s", {"A": "a"}, {"B": "B"})],
        ["{ }"],
        [],
    )
    for flow in flows:
        yield "", made(_steps(*flow))
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=f"{tensor('A')}, {tensor('B')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=f"{tensor('A', '4')}, {tensor('B')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=f"{tensor('B')}, {tensor('B')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), a=f"{tensor('A')}, {tensor('A')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), a=f"{tensor('A')}, {tensor('C')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=f"{tensor('B')}, {tensor('C')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), a=tensor("A", more="optional: true"))
    wide = plain(a=f"{tensor('A')}, {tensor('C', more='optional: true')}")
    need = plain(a=f"{tensor('A')}, {tensor('C')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=wide)
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=need)
    yield "", made(_steps(step("s", {"A": "A", "C": "A"}, {"B": "B"})), s=need)
    pair = plain(b=f"{tensor('B')}, {tensor('C')}")
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=pair)
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B", "C": "B"})), s=pair)
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B", "C": "z"})), s=pair)
    for head, more in product(
        ('platform: "ensemble"', "", 'backend: "ensemble"', 'platform: "ensemble" backend: "identity"', 'platform: "x"', IDENTITY),
        ("", *EXTRAS),
    ):
        yield "", made(f"{_steps(step('s', {'A': 'A'}, {'B': 'B'}))} {more}", head=head)
    for files in (
        {"1/": ""},
        {"1/x": ""},
        {"2.bak/x": ""},
        {"v1/x": ""},
        {"configs/x": ""},
        {"x": ""},
        {"1/model.py": PROGRAM},
        {"01/x": ""},
    ):
        yield (
            "",
            {
                **{path: text for path, text in made(_steps(step("s", {"A": "A"}, {"B": "B"}))).items() if path != "m/1/"},
                **{f"m/{path}": text for path, text in files.items()},
            },
        )
    for broken in ("backend: ", plain("strange: 1"), plain(batch="-1"), plain("instance_group { kind: KIND_GPU }")):
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=broken)
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=IDENTITY)
    yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), s=f"{IDENTITY} max_batch_size: 4")
    inner = config(_steps(step("s", {"A": "A"}, {"B": "B"})), head='platform: "ensemble"')
    yield "", made(_steps(step("e", {"A": "A"}, {"B": "B"})), e=inner)
    yield "", made(_steps(step("e", {"A": "A"}, {"B": "x"}), step("t", {"A": "x"}, {"B": "B"})), e=inner)
    yield "", made(_steps(step("e", {"A": "A"}, {"B": "B"})), e=inner.replace('"s"', '"m"'))
    yield "", made(_steps(step("e", {"A": "A"}, {"B": "B"})), e=inner.replace('"s"', '"gone"'))
    # Decoupled steps: branches, joins and outputs
    some, many = plain(), plain(DECOUPLED)
    double = plain(a=f"{tensor('A')}, {tensor('C')}")
    both = f"{tensor('B')}, {tensor('D')}"
    for left, right in product((some, many), repeat=2):
        one, two = step("s", {"A": "A"}, {"B": "x"}), step("t", {"A": "A"}, {"B": "y"})
        yield "", made(_steps(one, two, step("u", {"A": "x", "C": "y"}, {"B": "B"})), s=left, t=right, u=double)
        yield "", made(_steps(one, step("u", {"A": "x", "C": "A"}, {"B": "B"})), s=left, u=double)
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"}), step("t", {"A": "A"}, {"B": "D"})), b=both, s=left, t=right)
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"}), step("t", {"A": "B"}, {"B": "D"})), b=both, s=left, t=right)
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "x"}), step("t", {"A": "x"}, {"B": "B"})), s=left, t=right)
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"})), b=f"{tensor('A')}, {tensor('B')}", s=left)
        yield (
            "",
            made(_steps(step("e", {"A": "A"}, {"B": "B"}), step("t", {"A": "A"}, {"B": "D"})), b=both, e=inner, s=left, t=right),
        )
        yield (
            "",
            made(
                _steps(step("s", {"A": "A"}, {"B": "B", "C": "D"})),
                b=both,
                s=left.replace(tensor("B"), f"{tensor('B')}, {tensor('C')}"),
            ),
        )
        yield (
            "",
            made(
                _steps(step("s", {"A": "A"}, {"B": "x", "C": "y"}), step("u", {"A": "x", "C": "y"}, {"B": "B"})),
                s=left.replace(tensor("B"), f"{tensor('B')}, {tensor('C')}"),
                u=double,
            ),
        )
        yield "", made(_steps(step("s", {"A": "A"}, {"B": "B"}), step("s", {"A": "A"}, {"B": "D"})), b=both, s=left)


EXTRAS = (
    *(
        "instance_group { }",
        "optimization { }",
        "model_warmup { }",
        "dynamic_batching { }",
        "sequence_batching { }",
        CACHE,
        DECOUPLED,
    ),
    *('default_model_filename: "model.py"', 'default_model_filename: "x"', "batch_input { }", "version_policy { all { } }"),
    *('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "gone" } }', 'runtime: "x"', 'name: "other"'),
    *('batch_output { target_name: "B" source_input: "A" }', "model_repository_agents { agents { name: 'gone' } }"),
)


def layouts() -> Iterator[Case]:
    """Directories: versions and what looks like one, links, pipes, names, empty versions, and configs that are no file."""
    policies = (
        "",
        "version_policy { all { } }",
        "version_policy { specific { versions: 1 } }",
        "version_policy { latest { num_versions: 2 } }",
    )
    others = (
        *(
            "1.bak",
            "2-old",
            "2_old",
            "2.bak",
            "0",
            "00",
            "01",
            "02",
            "v2",
            "-1",
            "-0",
            "+2",
            " 2",
            "2 ",
            "1e3",
            "0x2",
            "2.5",
            ".2",
            "2.",
        ),
        *(
            "9223372036854775807",
            "9223372036854775808",
            "99999999999999999999",
            "-9223372036854775809",
            "configs",
            "warmup",
            "initial_state",
        ),
        *("tmp", ".git", "__pycache__", "\uff12", "\udcff", "latest", "1.x.y", "2\n", "a b"),
    )
    for policy, other in product(policies, others):
        yield "", {"m/config.pbtxt": config(policy), "m/1/model.py": PROGRAM, f"m/{other}/model.py": PROGRAM}
        if policy in policies[:2]:
            yield "", {"m/config.pbtxt": plain(policy), "m/1/x": "", f"m/{other}/x": ""}
    for other in others:
        yield "", {"m/config.pbtxt": plain(), f"m/{other}/x": ""}
        yield "", {"m/config.pbtxt": plain(), "m/1/x": "", f"m/{other}": "a file"}
        yield "", {"m/config.pbtxt": plain(), "m/1/x": "", f"m/1/{other}": "a file"}
    for other in ("1.bak", "2-old", "0", "configs"):
        yield "", {"m/config.pbtxt": config(), f"m/{other}/model.py": PROGRAM}
    for versions in ("1", "2", "3", "1, 3", "2, 1", "0", "-1", "1, 1", ""):
        yield "", {"m/config.pbtxt": plain(f"version_policy {{ specific {{ versions: [ {versions} ] }} }}"), "m/1/": "", "m/3/": ""}
    for count in ("0", "1", "2", "9", "4294967295"):
        yield "", {"m/config.pbtxt": plain(f"version_policy {{ latest {{ num_versions: {count} }} }}"), "m/1/": "", "m/3/": ""}
    yield "", {"m/config.pbtxt": plain("version_policy { }"), "m/1/": ""}
    yield "", {"m/config.pbtxt": plain("version_policy { latest { } }"), "m/1/": ""}
    # Links and what is no file
    good = {"m/config.pbtxt": config(), "m/1/model.py": PROGRAM}
    for path in ("m/x", "m/1/x", "m/configs/x", "m/1/lib/x"):
        yield "", {**good, path: Link("gone")}
        yield "", {**good, path: Link("/etc/hosts")}
        yield "", {**good, path: Link(".")}
        yield "", {**good, path: Link("..")}
        yield "", {**good, path: Pipe()}
        yield "", {**good, f"{path}\udcff": "latin"}
        yield "", {**good, f"{path}\n": "a line"}
    for path, rest in (("m/2", {"m/1/model.py": PROGRAM}), ("m/1", {})):
        for target in ("gone", "code", "../n/1", "1"):
            yield "", {"m/config.pbtxt": config(), **rest, path: Link(target), "m/code/model.py": PROGRAM, "n/1/model.py": PROGRAM}
    for target, extra in (
        *(
            ("gone.py", {}),
            ("../../n/model.py", {"n/model.py": PROGRAM}),
            ("other.py", {"m/1/other.py": PROGRAM}),
            ("/dev/null", {}),
        ),
        *(("../model.py", {"m/model.py": PROGRAM}), (".", {}), ("../lib", {"m/lib/x": ""})),
    ):
        yield "", {"m/config.pbtxt": config(), "m/1/model.py": Link(target), **extra}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py/": ""}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": Pipe()}
    for target, extra in (("gone", {}), ("c", {"m/c": config()}), ("../c", {"c": config()}), ("1", {})):
        yield "", {"m/config.pbtxt": Link(target), "m/1/model.py": PROGRAM, **extra}
    yield "", {"m/config.pbtxt/": "", "m/1/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": Pipe(), "m/1/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": "", "m/1/model.py": PROGRAM}
    yield "", {"m": Link("elsewhere"), "elsewhere/config.pbtxt": config(), "elsewhere/1/model.py": PROGRAM}
    yield "", {"m": Link("gone")}
    yield "", {"m/": ""}
    yield "", {"m/1/": ""}
    yield "", {"m/config.pbtxt": plain()}
    yield "", {"m/config.pbtxt": plain(), "m/1": "a file"}
    yield "", {"m/config.pbtxt": config(), "m/1/": "", "m/2/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/2/": "", "m/1/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": config("version_policy { all { } }"), "m/1/": "", "m/2/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": PROGRAM, "m/configs/a.pbtxt": config(batch="8")}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": PROGRAM, "m/configs/a.pbtxt/": ""}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": PROGRAM, "m/1/config.pbtxt": "strange: 1"}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": PROGRAM, "m/2": "a file"}
    for case in ("Config.pbtxt", "config.txt", "config.pbtxt.bak", "config.json"):
        yield "", {**good, f"m/{case}": "strange: 1"}
        yield "", {f"m/{case}": config(), "m/1/model.py": PROGRAM}


def roots() -> Iterator[Case]:
    """What lies in the repository's root, where a server loads all models when it starts."""
    good = {"m/config.pbtxt": plain(), "m/1/": ""}
    yield "", good
    for beside in (
        {"x": "a file"},
        {"x": Link("gone")},
        {"x": Link("m/config.pbtxt")},
        {"x": Pipe()},
        {"x": Link("m")},
        {"x/": ""},
        {".git/config": ""},
        {"lost+found/": ""},
        {"x/1/": ""},
        {"x/config.pbtxt": "strange: 1", "x/1/": ""},
        {"x/config.pbtxt/": "", "x/1/": ""},
        {"\udcff": "a file"},
        {"\udcff/": ""},
        {".x": Link("gone")},
        {"m/x": Link("gone")},
        {"m/9.bak/": ""},
        {"m/99999999999999999999/": ""},
        {"x/config.pbtxt": plain(), "x/99999999999999999999/": ""},
        {"x/config.pbtxt": config('batch_output { source_input: "A" }'), "x/1/model.py": PROGRAM},
        {"x/config.pbtxt": plain('metric_tags { key: "a-b" value: "x" }'), "x/1/": ""},
        {"x/config.pbtxt": plain('name: "m"'), "x/1/": ""},
    ):
        yield "", {**good, **beside}


def programs() -> Iterator[Case]:
    """model.py files of which a parse tells that they fail, and some that only look like it."""
    execute = "    def execute(self, requests):\n        return []\n"
    head = "class TritonPythonModel:\n"

    def of(body: str, before: str = "", after: str = "", first: str = head) -> Case:
        return "", {"m/config.pbtxt": config(), "m/1/model.py": before + first + body + execute + after}

    for signature in (
        "self",
        "",
        "self, args",
        "args",
        "self, *args",
        "*args",
        "self, args, more",
        "self, args=None",
        "self, args, more=1",
        "self, *, args",
        "self, *, args=None",
        "self, **args",
        "self, args, /",
        "self, args, *, more",
    ):
        yield of(f"    def initialize({signature}):\n        pass\n")
        yield of(f"    @staticmethod\n    def initialize({signature}):\n        pass\n")
    yield of("    @classmethod\n    def initialize(cls, args):\n        pass\n")
    yield of("    @classmethod\n    def initialize(cls):\n        pass\n")
    yield of("    async def initialize(self, args):\n        pass\n")
    yield of("    initialize = None\n")
    yield of("    initialize = lambda self, args: None\n")
    yield of("    initialize = lambda self: None\n")
    for signature, answer in product(
        ("config", "self, config", "", "config, more", "config=None", "*configs", "cls, config", "config, *, more=1"),
        ("return config", "return", "pass", "return None", "return 1", "yield config"),
    ):
        name = next((word for word in ("config", "configs") if word in signature.replace("*", "").split(", ")), "1")
        text = answer.replace("config", f"{name}[0]" if "*configs" in signature else name.partition("=")[0])
        yield of(f"    @staticmethod\n    def auto_complete_config({signature}):\n        {text}\n")
        if answer in ("return config", "pass"):
            yield of(f"    def auto_complete_config({signature}):\n        {text}\n")
            yield of(f"    @classmethod\n    def auto_complete_config({signature}):\n        {text}\n")
    yield of("    @staticmethod\n    def auto_complete_config(config):\n        if config:\n            return config\n")
    yield of("    @staticmethod\n    def auto_complete_config(config):\n        if not config:\n            return config\n")
    yield of("    @staticmethod\n    def auto_complete_config(config):\n        raise ValueError('no')\n")
    yield of("    @staticmethod\n    def auto_complete_config(config):\n        def inner():\n            return config\n")
    yield of("    @staticmethod\n    async def auto_complete_config(config):\n        return config\n")
    yield of("    auto_complete_config = staticmethod(lambda config: config)\n")
    for signature in ("self", "self, args", "self, args=None", "self, *args", ""):
        yield of(f"    def __init__({signature}):\n        pass\n")
    yield of("    def __init__(self):\n        return 1\n")
    yield of("    def __init__(self):\n        raise ValueError('no')\n")
    yield of("    def initialize(self, args):\n        raise ValueError('no')\n")
    yield of("    def finalize(self, args):\n        pass\n")
    yield of("    def finalize(self):\n        pass\n")
    for first in (
        "class TritonPythonModel(object):\n",
        "class TritonPythonModel():\n",
        "class TritonPythonModel(Base):\n",
        "class tritonPythonModel:\n",
        "class TritonPythonModels:\n",
        "@decorate\nclass TritonPythonModel:\n",
        "class TritonPythonModel(gone):\n",
        "class TritonPythonModel(metaclass=type):\n",
    ):
        yield of("", before="class Base:\n    pass\n\n\ndef decorate(cls):\n    return cls\n\n\n", first=first)
    for before in (
        *(
            "import gone\n",
            "from gone import x\n",
            "import os\n",
            "from __future__ import annotations\n",
            "x = 1\nfrom __future__ import annotations\n",
        ),
        *(
            "print('x')\n",
            "raise SystemExit(0)\n",
            "assert False\n",
            "return 1\n",
            "await x\n",
            "yield 1\n",
            "import sys; sys.exit(0)\n",
            "1/0\n",
        ),
        *(
            "def f(a, a):\n    pass\n",
            "x = y\n",
            "break\n",
            "continue\n",
            "nonlocal x\n",
            "global x\n",
            "del x\n",
            "# -*- coding: latin-1 -*-\n# \u00e9\n",
        ),
        *(
            "# -*- coding: gone -*-\n",
            "\ufeff",
            "\t\n",
            "x = '\n",
            "f'{x y}'\n",
            "match 1:\n    case 1:\n        pass\n",
            "print 'x'\n",
            "x = 010\n",
        ),
        *(
            "type X = int\n",
            "def f[T](x: T): pass\n",
            "try:\n    pass\nexcept* ValueError:\n    pass\n",
            'x = f\'{"a" + f"{1}"}\'\n',
            "(x := 1)\n",
        ),
        *(
            "def f():\n\tif 1:\n        pass\n",
            "if 1:\n    x = 1\n  y = 2\n",
            "\0",
            "x = (1,\n",
            "class A: pass\n",
            "async def f():\n    await x\n",
        ),
        *(
            "def f():\n    return\n    yield\n",
            "lambda: (yield)\n",
            "[await x for x in y]\n",
            "f(**a, *b)\n",
            "f(a=1, a=2)\n",
            "*x = 1\n",
            "x, *y, *z = 1\n",
        ),
        *(
            "None = 1\n",
            "f() = 1\n",
            "def f(x, *): pass\n",
            "def f(x=1, y): pass\n",
            "'\\N{gone}'\n",
            "b'\u00e9'\n",
            "x = 1 if 2\n",
            "class B(x for x in y): pass\n",
        ),
    ):
        yield of("", before=before)
    yield of("", after="del TritonPythonModel\n")
    yield of("", after="TritonPythonModel = None\n")
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": ("# \u00e9\n" + head + execute).encode("latin-1")}
    yield (
        "",
        {"m/config.pbtxt": config(), "m/1/model.py": ("# -*- coding: latin-1 -*-\n# \u00e9\n" + head + execute).encode("latin-1")},
    )
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": (head + execute).encode("utf-16")}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": (head + execute).replace("\n", "\r\n")}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": (head + execute).replace("\n", "\r")}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "from code import *\n", "m/1/code.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "from .code import TritonPythonModel\n", "m/1/code.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "from ours import TritonPythonModel\n", "m/1/ours.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "from ours import TritonPythonModel\n", "m/ours.py": PROGRAM}
    yield (
        "",
        {
            "m/config.pbtxt": config(),
            "m/1/model.py": "if True:\n    from ours import TritonPythonModel\n",
            "m/1/ours/__init__.py": PROGRAM,
        },
    )
    for name in (
        "model",
        "other.py",
        "sub/model.py",
        "model.pyc",
        "a-b.py",
        "a.b.py",
        "1.py",
        "../model.py",
        "MODEL.PY",
        "class.py",
    ):
        yield (
            "",
            {
                "m/config.pbtxt": config(f'default_model_filename: "{name}"'),
                f"m/1/{name}" if not name.startswith(".") else "m/model.py": PROGRAM,
                "m/1/x": "",
            },
        )


def environments() -> Iterator[Case]:
    """EXECUTION_ENV_PATH and the switches of the Python backend."""

    def of(key: str, value: str, **files: Any) -> Case:
        text = f'parameters {{ key: "{key}" value {{ {value} }} }}'
        return "", {
            "m/config.pbtxt": config(text),
            "m/1/model.py": PROGRAM,
            **{f"m/{path}": content for path, content in files.items()},
        }

    for word in ("yes", "no", "", "Yes", "YES", "true", "false", "1", "0", "on", " yes", "yes ", "n"):
        yield of("FORCE_CPU_ONLY_INPUT_TENSORS", f'string_value: "{word}"')
    yield of("FORCE_CPU_ONLY_INPUT_TENSORS", "")
    yield of("force_cpu_only_input_tensors", 'string_value: "x"')
    yield of("FORCE_CPU_ONLY_INPUT_TENSOR", 'string_value: "x"')
    yield "", bare(plain('parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "x" } }'))
    key, own = "EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY"
    good = archive({"bin/activate": "", "lib/x": ""})
    yield of(key, "")
    for path in (
        "",
        own,
        f"{own}/",
        f"{own}/gone",
        f"{own}/1",
        f"{own}/../m/1",
        "gone",
        ".",
        "$TRITON_MODEL_DIRECTORY/e",
        f"{own}e",
        f"x/{own}/e.tar.gz",
        f"{own}/config.pbtxt",
        f"{own}/1/model.py",
        "~/e",
        "s3://x/e.tar.gz",
    ):
        yield of(key, f'string_value: "{path}"')
    for content in (
        *(
            "no archive",
            "",
            b"\x1f\x8b",
            good,
            good[:40],
            archive({"x": ""}),
            archive({"./bin/activate": ""}),
            archive({"e/bin/activate": ""}),
        ),
        *(
            archive({"bin/activate": ""}, mode="w"),
            archive({"bin/activate": ""}, mode="w:bz2"),
            archive({"bin/activate": ""}, mode="w:xz"),
        ),
        *(
            archive({}),
            gzip.compress(b"x", mtime=0),
            b"PK\3\4",
            b"\0" * 1024,
        ),
    ):
        yield of(key, f'string_value: "{own}/e.tar.gz"', **{"e.tar.gz": content})
    for name in ("e.zip", "e", "e.tgz", "x/e.tar.gz", "1/e.tar.gz"):
        yield of(key, f'string_value: "{own}/{name}"', **{name: good})
    yield of(key, f'string_value: "{own}/../e.tar.gz"', **{"../e.tar.gz": good})
    yield of(key, f'string_value: "{own}/../n/e.tar.gz"', **{"../n/e.tar.gz": good})
    yield of(key, f'string_value: "{own}/x/../e.tar.gz"', **{"e.tar.gz": good})
    yield of(key, f'string_value: "{own}/e.tar.gz"', **{"e.tar.gz": Link("f.tar.gz"), "f.tar.gz": good})
    yield of(key, f'string_value: "{own}/e.tar.gz"', **{"e.tar.gz": Link("../f.tar.gz"), "../f.tar.gz": good})
    yield of(key, f'string_value: "{own}/e.tar.gz"', **{"e.tar.gz": Link("gone")})
    yield of(key, f'string_value: "{own}/e.tar.gz"', **{"e.tar.gz": Pipe()})
    for files in (
        {"e/": ""},
        {"e/bin/activate": ""},
        {"e/activate": ""},
        {"e/bin/activate/": ""},
        {"e/bin/": ""},
        {"e/bin/activate": Link("gone")},
    ):
        yield of(key, f'string_value: "{own}/e"', **files)
        yield of(key, f'string_value: "{own}/e/"', **files)
    yield of(key, f'string_value: "{own}/../n/e"', **{"../n/e/bin/activate": ""})
    yield of(key, f'string_value: "{own}/e"', **{"e": Link("f"), "f/bin/activate": ""})
    yield of("EXECUTION_ENV_PATHS", 'string_value: "gone"')
    yield of("execution_env_path", 'string_value: "gone"')
    yield "", bare(plain(f'parameters {{ key: "{key}" value {{ string_value: "gone" }} }}'))
    yield "", bare(plain(f'parameters {{ key: "{key}" value {{ string_value: "{own}/gone" }} }}'))


def archive(files: dict[str, str], mode: str = "w:gz") -> bytes:
    """A tar archive that is the same each time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    if mode == "w:gz":
        return gzip.compress(packed.getvalue(), mtime=0)
    if mode == "w":
        return packed.getvalue()
    import bz2
    import lzma

    return bz2.compress(packed.getvalue()) if mode == "w:bz2" else lzma.compress(packed.getvalue())


GROUPS = (spellings, fields, schedulers, identities, meetings, layouts, roots, programs, environments)
