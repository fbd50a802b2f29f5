"""Model repositories for comparing the linter with real Tritons. `CASES` is {name: (rule, files)}.

`rule` is the rule of the linter that has to report an error, or "" if no particular rule has to. `files` is {path: content}, where
the content is text, bytes, a `Link`, a `Pipe` or a `Library`. A path that ends in / is an empty directory. The verdict is about
model `m`, or about the first model if no model is called `m`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import generated
from building import PROGRAM, Files, Link, config, control, model, more, sample, state, tensor, warm

DTYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")


def right() -> Iterator[tuple[str, Files]]:
    yield from (("", model(config(a=tensor("A", dtype=dtype), b=tensor("B", dtype=dtype)))) for dtype in DTYPES)
    yield from (
        ("", model(config(a=tensor("A", dims), batch=batch))) for dims, batch in product(("-1", "1", "2, -1", "0x10"), "018")
    )
    yield from more(
        "",
        'name: "m"',
        "# \u3000\u2028 +4 1_000 '",
        "dynamic_batching { }",
        "dynamic_batching { preferred_batch_size: [ 1, 4 ] max_queue_delay_microseconds: 100 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 2 value { } } }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: REJECT } }",
        "instance_group { kind: KIND_CPU count: 2 }",
        "instance_group { kind: KIND_MODEL }",
        "instance_group [ { kind: 2 } ]",
        "instance_group: < count: 1 >",
        "version_policy { all { } }",
        "version_policy { latest { num_versions: 3 } }",
        "version_policy { specific { versions: [ 1 ] } }",
        'parameters { key: "x" value { string_value: "\\"\\x41\\101\\n" \'more\' } }',
        'metric_tags { key: "team" value: "a-b" }',
        "model_transaction_policy { decoupled: true }",
        "sequence_batching { }",
        "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
        "sequence_batching { oldest { max_candidate_sequences: 4 preferred_batch_size: 2 } }",
        control("CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"),
        control("CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ]"),
        control("CONTROL_SEQUENCE_READY bool_false_true: [ false, true ]"),
        control("CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"),
        control("CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"),
        state("zero_data: true"),
        warm(sample("zero_data: true")),
        warm(sample("random_data: true"), 4),
        warm(""),
        'batch_input { target_name: "C" data_type: TYPE_INT32 source_input: "A" }',
        'batch_output { target_name: "B" source_input: "A" }',
        'instance_group [ { kind: KIND_CPU name: "a" }, { kind: KIND_CPU name: "b" passive: true } ]',
        "optimization { input_pinned_memory { enable: true } priority: PRIORITY_MAX }",
    )
    yield "", model(config(more=warm("", 0)))
    yield "", model(config(batch="010"))
    yield "", model(config().replace("\n", "\r\n"))
    yield "", model("# \ubaa8\ub378\n".encode("cp949") + config().encode())
    yield "", model("# mod\u00e8le\n".encode("latin-1") + config().encode())
    yield "", model('backend: "python"')
    yield "", model(config().replace('backend: "python"\n', ""))
    yield "", model(config(head='backend: "python" default_model_filename: "model.py"'))
    yield "", model(config(b=tensor("B", more='label_filename: "./l"')), l="a\nb\nc\n")
    yield "", model(config(a=tensor("A", "4", more="reshape { shape: [ 2, 2 ] }")))
    yield "", model(config(a=tensor("A", "1", more="reshape { shape: [ ] }")))
    yield "", model(config(a=tensor("A", "1, 2, 3", more="format: FORMAT_NCHW")))
    yield "", model(config(a=tensor("A", more="optional: true")))
    yield "", model(config(a=tensor("A", more="allow_ragged_batch: true")))
    yield "", {**model(config()), "README.md": "ours", "m/README": "", "m/lib/x.py": ""}
    yield "", {**model(config()), "m/2/model.py": PROGRAM, "m/v3/x": "", "m/01/x": ""}
    yield "", {"m/config.pbtxt": config(), "m/1": Link("code"), "m/code/model.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": Link("../code/x.py"), "m/code/x.py": PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "# \ubaa8\ub378\n" + PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "try:\n    import numpy\nexcept ImportError:\n    pass\n" + PROGRAM}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "class Base:\n    pass\n\nTritonPythonModel = Base\n"}
    yield "", {"m/config.pbtxt": config(), "m/1/model.py": "class TritonPythonModel:\n    pass\n"}
    yield "", {"m/config.pbtxt": config(a='{ name: "A" }'), "m/1/model.py": PROGRAM + COMPLETES}


COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [3]})
        return config
"""


def texts() -> Iterator[tuple[str, Files]]:
    yield from more(
        "syntax",
        *(
            f"version_policy {{{space}all {{ }} }}"
            for space in ("\u00a0", "\u3000", "\u2028", "\u2003", "\u200b", "\ufeff", "\x00")
        ),
        *(
            f"instance_group {{ count: {number} kind: KIND_CPU }}"
            for number in ("1_0", "+1", "0b1", "0o1", "08", "1.0", '"1"', "one")
        ),
        *(f"parameters {{ key: 'x' value {{ string_value: '{text}' }} }}" for text in ("\\q", "\\d", "\\ ", "\\8", "a\nb")),
        "version_policy { specific { versions: [ 1, ] } }",
        "instance_group [ { kind: KIND_CPU }, ]",
        "instance_group [ { kind: KIND_CPU }",
        "instance_group [ kind: KIND_CPU ]",
        "// ours",
        "/* ours */",
        "max_batch_size: 4",
        "max_queue: = 4",
        *(f"instance_group {{ kind: {kind} }}" for kind in ("KIND_NPU", "CPU", "kind_cpu", '"KIND_CPU"')),
        *(f"{name} {{ }}" for name in ("dynamic_batch", "instance_groups", "sequence_batch", "Dynamic_Batching", "strange")),
        "dynamic_batching { max_queue_delay: 1 }",
        'parameters { key: "x" value: "y" }',
        "dynamic_batching: true",
        "instance_group { count: 99999999999 }",
        "instance_group { count: -5000000000 }",
    )
    for dtype in ("FP32", "TYPE_BYTES", "TYPE_FLOAT32", "float32", "TYPE_fp32", '"TYPE_FP32"'):
        yield "syntax", model(config(a=tensor("A").replace("TYPE_FP32", dtype)))
    yield "syntax", model("\ufeff" + config())
    yield "syntax", model(config().replace(":", " =", 1))
    yield "syntax", model(config().replace("[ 3 ]", "[ 3, ]", 1))
    yield "syntax", model(config().replace("[ 3 ]", "( 3 )", 1))
    yield "syntax", model(config().replace("[ 3 ]", "[ 3", 1))
    yield "syntax", model(config().replace('"A"', "A", 1))
    yield "syntax", model('{ "backend": "python" }')
    yield "syntax", model("backend: python")
    yield "syntax", model("\ubaa8\ub378: 1\n" + config())
    yield "release", model(config("model_metrics { }"))


def configs() -> Iterator[tuple[str, Files]]:
    yield from (
        ("tensor", model(config(a=tensor("A", dims), batch=batch))) for dims, batch in product(("0", "-2", "3, 0", ""), "04")
    )
    yield from (
        ("tensor", model(config(b=tensor("B", dims), batch=batch))) for dims, batch in product(("0", "-2", "3, 0", ""), "04")
    )
    for entry in ('{ name: "X" dims: 3 }', "{ data_type: TYPE_FP32 dims: 3 }", '{ name: "X" data_type: TYPE_INVALID dims: 3 }'):
        yield "tensor", model(config(a=entry))
        yield "tensor", model(config(b=entry))
    for shape in ("5", "2, -1", "0", "4, 2"):
        yield "tensor", model(config(a=tensor("A", "4", more=f"reshape {{ shape: [ {shape} ] }}")))
    yield "tensor", model(config(a=tensor("A", "1", more="reshape { }"), batch="0"))
    for extra in ("format: FORMAT_NHWC", "format: FORMAT_NCHW", "is_shape_tensor: true"):
        yield "tensor", model(config(a=tensor("A", more=extra)))
    yield "name", model(config('name: "other"'))
    yield "batch", model(config(batch="-1"))
    yield "backend", model(config(head='platform: "python"'))
    yield "backend", model(config(head='platform: "caffe"'))
    for name in ("pyhton", "Python", "PYTHON", "pythn", "python3"):
        yield "backend", model(config(head=f'backend: "{name}"'))
    for runtime in ("model.py", "python", "libtriton_pyhton.so", "pyhton"):
        yield "backend", model(config(f'runtime: "{runtime}"'))
    yield "", model(config('runtime: "libtriton_python.so"'))
    yield from more(
        "npu host", "instance_group { kind: KIND_GPU }", "instance_group { gpus: 0 }", "instance_group { kind: KIND_CPU gpus: 0 }"
    )
    yield from more("instances", 'instance_group { kind: KIND_CPU profile: "0" }', "instance_group { kind: 9 }")
    limited = ('kind: KIND_CPU rate_limiter { resources [ { name: "r" count: 1 global: true }', '{ name: "r" count: 1 } ] }')
    yield from more("instances", f"instance_group {{ {', '.join(limited)} }}")
    yield "", model(config(f"instance_group {{ {limited[0]} ] }} }}"))
    yield from more("passive", "instance_group { kind: KIND_CPU passive: true }")
    yield from more(
        "batch",
        *(f"dynamic_batching {{ preferred_batch_size: [ {sizes} ] }}" for sizes in ("0", "5", "-1", "2, 8")),
        "dynamic_batching { priority_levels: 2 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
        "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 9 } }",
        "sequence_batching { oldest { preferred_batch_size: 0 } }",
    )
    yield from more(
        "sequence",
        *(control(f"{kind} {value}") for kind, value in product(("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END"), FALSE_TRUE)),
        *(control(f"CONTROL_SEQUENCE_CORRID {value}") for value in ("", "data_type: TYPE_FP32", "int32_false_true: [ 0, 1 ]")),
        "sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }",
        *(f"sequence_batching {{ direct {{ minimum_slot_utilization: {share} }} }}" for share in ("-1", "1.5")),
        state("zero_data: true", dims="3"),
        state("zero_data: true", dims="2, 1"),
        state("zero_data: true", name=""),
        state("zero_data: true", dtype="FP16"),
    )
    yield from more(
        "",
        'sequence_batching { state { output_name: "O" data_type: TYPE_FP32 dims: 2 } }',
        "sequence_batching { state { data_type: TYPE_FP32 dims: 2 } }",
    )
    yield from more("files", state(""), state('data_file: "gone"'), state("zero_data: true", dims="-1", of="-1"))
    yield "files", model(config(state('data_file: "d"')), **{"initial_state/d": "short"})
    yield "", model(config(state('data_file: "d"')), **{"initial_state/d": "8 bytes."})
    yield from more(
        "warm-up",
        *(warm(sample("zero_data: true", dims)) for dims in ("4", "1, 3", "-1", "")),
        *(warm(sample("zero_data: true", dtype=dtype)) for dtype in ("INT32", "FP16", "STRING")),
        *(warm(sample(kind)) for kind in ("", 'input_data_file: "gone"')),
        warm(sample("zero_data: true", name="C")),
        'model_warmup { name: "w" batch_size: 1 }',
    )
    yield "warm-up", model(config(warm(sample('input_data_file: "d"'))), **{"warmup/d": "elevenbytes"})
    yield "", model(config(warm(sample('input_data_file: "d"'))), **{"warmup/d": "twelve bytes"})
    yield from more(
        "batch data",
        'batch_input { target_name: "C" data_type: TYPE_INT64 source_input: "A" }',
        'batch_input { target_name: "C" data_type: TYPE_FP32 }',
        'batch_input { target_name: "C" data_type: TYPE_FP32 source_input: "X" }',
        'batch_input { target_name: "C" data_type: TYPE_FP32 source_input: [ "A", "A" ] }',
        'batch_output { target_name: "B" }',
        'batch_output { target_name: "X" source_input: "A" }',
        'batch_output { target_name: "B" source_input: "X" }',
        'batch_output { target_name: [ "B", "B" ] source_input: "A" }',
    )
    yield from more("metrics", *(f'metric_tags {{ key: "{key}" value: "x" }}' for key in ("a-b", "a b", "_a", "\ubaa8", "a.b")))
    yield from more("response cache", "sequence_batching { } response_cache { enable: true }")
    yield from more("response cache", "model_transaction_policy { decoupled: true } response_cache { enable: true }")
    for path in ("$TRITON_MODEL_DIRECTORY/e", "$$TRITON_MODEL_DIRECTORY/gone", "gone.tar.gz"):
        yield from more("files", f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}')


FALSE_TRUE = ("", "int32_false_true: 1", "int32_false_true: [ 0, 1, 2 ]", "int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


def files() -> Iterator[tuple[str, Files]]:
    for program in (
        "",
        "\n",
        POINTER,
        "def f(:\n",
        "class Model:\n    pass\n",
        "class tritonpythonmodel:\n    pass\n",
        "pass\n",
        " x = 1\n",
    ):
        yield "python model", {"m/config.pbtxt": config(), "m/1/model.py": program}
    yield "files", {"m/config.pbtxt": config(), "m/1/": ""}
    yield "files", {"m/config.pbtxt": config(), "m/1/other.py": PROGRAM}
    yield "files", {"m/config.pbtxt": config(), "m/1/model.py": Link("gone.py")}
    yield "files", {"m/config.pbtxt": config(head='backend: "python" default_model_filename: "gone.py"'), "m/1/model.py": PROGRAM}
    yield "files", {**model(config()), "m/2/": ""}
    yield "version policy", {"m/config.pbtxt": config(), "m/model.py": PROGRAM}
    yield "version policy", {"m/config.pbtxt": config(), "m/v1/model.py": PROGRAM}
    yield "version policy", {"m/config.pbtxt": config(), "m/01/model.py": PROGRAM}
    yield "version policy", {"m/config.pbtxt": config()}
    yield "version policy", model(config("version_policy { specific { versions: 2 } }"))
    for name in ("9.bak", "2_old", "3.tmp"):
        yield "version directory", {**model(config()), f"m/{name}/model.py": PROGRAM}
    yield "", {"m/1/model.py": PROGRAM, "m/notes": ""}
    for name in ("Config.pbtxt", "config.pbtxt.txt", "config.pbtx"):
        yield "stray", {f"m/{name}": config(head='backend: "onnxruntime"'), "m/1/other": ""}
    yield "labels", model(config(b=tensor("B", more='label_filename: "gone"')))
    # A second directory has a name that is no UTF-8.
    yield "", {**model(config()), "\udcff/": ""}
    # A subdirectory is a repository of models itself.
    yield "stray", {f"repository/{path}": content for path, content in model(config()).items()}


def chain(
    *steps: tuple[str, str, str], extra: str = "", a: str = tensor("A"), b: str = tensor("B"), batch: str = "4", last: str = ""
) -> str:
    listed = ", ".join(
        f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "A" value: "{reads}" }} '
        f'output_map {{ key: "B" value: "{writes}" }} }}'
        for name, reads, writes in steps
    )
    return config(f"ensemble_scheduling {{ step [ {listed} {last} ] }} {extra}", a, b, batch, 'platform: "ensemble"')


def ensembles() -> Iterator[tuple[str, Files]]:
    good = (("s", "A", "x"), ("t", "x", "B"))

    def build(text: str, s: str = config(), t: str = config()) -> Files:
        steps = {
            f"{name}/{path}": content
            for name, text in (("s", s), ("t", t))
            for path, content in (("config.pbtxt", text), ("1/model.py", PROGRAM))
        }
        return {"m/config.pbtxt": text, "m/1/README": "", **steps}

    yield "", build(chain(*good))
    yield "", build(chain(("s", "A", "B")))
    yield "", build(chain(*good, batch="2"))
    yield "", build(chain(*good), t=config(a=tensor("A", "-1")))
    yield "", build(chain(*good), t=config("model_transaction_policy { decoupled: true }"))
    yield "ensemble", build(chain(*good), t='backend: "python" max_batch_size: 4')
    for steps in (
        (("s", "A", "x"), ("u", "x", "B")),
        (("s", "A", "x"), ("t", "y", "B")),
        (("s", "A", "B"), ("t", "A", "B")),
        (("s", "A", "x"),),
        (("s", "x", "y"), ("t", "y", "B")),
        (*good, ("s", "A", "z")),
        (("m", "A", "B"),),
        (("", "A", "B"),),
    ):
        yield "ensemble", build(chain(*steps))
    for extra in ("instance_group { kind: KIND_CPU }", "optimization { }", warm("")):
        yield "ensemble", build(chain(*good, extra=extra))
    yield "backend", build(chain(*good, extra='backend: "python"'))
    yield "ensemble", build(chain(*good, batch="8"))
    for other in (tensor("A", "4"), tensor("A", "3, 1"), tensor("A", dtype="INT32"), tensor("C")):
        yield "ensemble", build(chain(*good), t=config(a=other))
    yield "ensemble", build(chain(*good), t=config(b=tensor("B", dtype="FP64")))
    yield "ensemble", build(chain(*good), t=config(b=tensor("C")))
    # Two branches of the ensemble whose outputs are the inputs of one step
    decoupled = config("model_transaction_policy { decoupled: true }")
    maps = 'input_map { key: "A" value: "x" } input_map { key: "C" value: "y" } output_map { key: "B" value: "B" }'
    meet = chain(("s", "A", "x"), ("t", "A", "y"), last=f', {{ model_name: "u" model_version: -1 {maps} }}')
    both = {"u/config.pbtxt": config(a=f"{tensor('A')}, {tensor('C')}"), "u/1/model.py": PROGRAM}
    yield "", {**build(meet), **both}
    yield "ensemble", {**build(meet, decoupled), **both}
    yield "ensemble", {**build(meet, decoupled, decoupled), **both}
    yield "ensemble", build(config(head='platform: "ensemble"'))
    yield "ensemble", build(chain(*good).replace("model_version: -1", ""))
    yield "ensemble", build(chain(*good).replace("model_version: -1", "model_version: 2"))
    # An output of the ensemble that is also its input
    yield "", build(chain(("s", "A", "B"), b=f"{tensor('A')}, {tensor('B')}"))
    yield "ensemble", build(chain(("s", "A", "x"), b=tensor("A")))


def names() -> Iterator[tuple[str, Files]]:
    """Yield cases with names of Python models, which older versions of Triton pass to a shell."""
    for name in ("a.b-c_d", "A+1", "a=b", "a@b,c", "a~b", "%41"):
        yield "", {f"{name}/config.pbtxt": config(), f"{name}/1/model.py": PROGRAM}
    for name in ("m (1)", "my model", "a&b", "a'b", "\ubaa8\ub378"):
        yield "model name", {f"{name}/config.pbtxt": config(), f"{name}/1/model.py": PROGRAM}


def _named() -> Iterator[tuple[str, tuple[str, Files]]]:
    for group in (right, texts, configs, files, ensembles, names, *generated.GROUPS):
        yield from ((f"{group.__name__}-{number:03}", case) for number, case in enumerate(group()))


CASES: dict[str, tuple[str, Files]] = dict(_named())
