# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about data in a config: warm-ups, initial states of sequences, and tensors that Triton makes from a batch.

Sources in triton-inference-server/core: GenerateWarmupData of backend_model_instance.cc, GenerateInitialStateData of
sequence_batch_scheduler.cc, ValidateBatchIO of model_config_utils.cc.
"""

from __future__ import annotations

import math
import os
from typing import Any, Iterator

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.compiled import fits
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import effects, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import with_suggestion

# Bytes of one element. For a string, these are the 4 bytes of its length, which precede its characters.
ELEMENT_BYTES = {
    **dict.fromkeys(("TYPE_BOOL", "TYPE_UINT8", "TYPE_INT8"), 1),
    **dict.fromkeys(("TYPE_UINT16", "TYPE_INT16", "TYPE_FP16", "TYPE_BF16"), 2),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_INT32", "TYPE_FP32", "TYPE_STRING"), 4),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_INT64", "TYPE_FP64"), 8),
}
BATCH_TYPES = ("TYPE_INT32", "TYPE_FP32")


def check(model: Model) -> Iterator[Finding]:
    """Yield the findings about data. If an ensemble has warm-ups, config.py reports an error."""
    if not model.ensemble:
        yield from _warm_ups(model)
    yield from _states(model)
    yield from _batch_io(model)


def _warm_ups(model: Model) -> Iterator[Finding]:
    config, rule = model.config, "warm-up"
    inputs = {tensor.name: tensor for tensor in config.input}
    controls = [tensor.name for tensor in config.sequence_batching.control_input]
    for index, sample in enumerate(config.model_warmup):
        field = f"model_warmup[{index}]"
        if not sample.batch_size:
            yield model.warning(rule, f"{field}.batch_size", "missing", "1 or more", "Add it", effects.IGNORES)
            continue
        if 0 < config.max_batch_size < sample.batch_size:
            expected = f"at most {config.max_batch_size}, the max_batch_size"
            yield model.error(rule, f"{field}.batch_size", str(sample.batch_size), expected)
        elif config.max_batch_size == 0 and sample.batch_size > 1:
            actual, expected = str(sample.batch_size), "1 with max_batch_size 0"
            yield model.error(rule, f"{field}.batch_size", actual, expected, triton=effects.CRASHES)
        missing = [name for name, tensor in inputs.items() if not tensor.optional and name not in sample.inputs]
        if missing:
            actual, expected = f"without {listed(missing)}", "data for every input that is not optional"
            yield model.error(rule, f"{field}.inputs", actual, expected, "Add it")
        for name, data in sorted(sample.inputs.items()):
            inner = f"{field}.inputs[{name}]"
            yield from _data(model, inner, data, "warmup", data.input_data_file)
            if name in inputs:
                yield from _compare(model, rule, inner, data, inputs[name], "input")
            elif inputs and name not in controls:
                expected, todo = f"one of {listed(sorted(inputs))}", with_suggestion(name, inputs, "Correct the name, or remove it")
                yield model.warning(rule, inner, name, expected, todo, "passes the backend an input that no request has")


def _compare(model: Model, rule: str, field: str, data: Any, tensor: Any, owner: str) -> Iterator[Finding]:
    """Yield the errors of data that has another data type or shape than the tensor."""
    if data.data_type != tensor.data_type and (tensor.data_type or owner == "state"):
        actual, expected = schema.enum_name(data, "data_type"), f"{schema.enum_name(tensor, 'data_type')}, the type of the {owner}"
        yield model.error(rule, f"{field}.data_type", actual, expected)
    if (tensor.dims or owner == "state") and min(data.dims, default=0) >= 0 and not fits(data.dims, tensor.dims):
        actual, expected = str(list(data.dims)), f"sizes for {list(tensor.dims)} of the {owner}, without the batch size"
        yield model.error(rule, f"{field}.dims", actual, expected)


def _data(model: Model, field: str, entry: Any, directory: str, name: str) -> Iterator[Finding]:
    """Yield the errors of unknown sizes, of missing data, and of a file in `directory` that is missing or too short."""
    warm_up = directory == "warmup"
    rule, key = ("warm-up", "input_data_file") if warm_up else ("files", "data_file")
    choice = entry.WhichOneof("input_data_type" if warm_up else "state_data")
    if any(size < 0 for size in entry.dims):
        yield model.error(rule, f"{field}.dims", str(list(entry.dims)), "a size for each dimension of the data", "Write the sizes")
    if choice is None:
        kinds = "zero_data, random_data or input_data_file" if warm_up else "zero_data or data_file"
        yield model.error(rule, field, "without data", kinds, "Add one of them")
    elif choice == key:
        path = os.path.normpath(os.path.join(directory, name))
        if path not in model.files or directory not in model.all_directories:
            actual, expected = f"{name}, which does not exist", f"a file below {directory}/"
            yield model.error(rule, f"{field}.{key}", actual, expected, "Add the file, or correct its name")
        elif schema.enum_name(entry, "data_type") != "TYPE_STRING" and min(entry.dims, default=0) >= 0:
            needed = ELEMENT_BYTES.get(schema.enum_name(entry, "data_type"), 0) * math.prod(entry.dims)
            full = os.path.join(model.directory, path)
            # The inventory adds a file that does not exist.
            length = os.path.getsize(full) if os.path.exists(full) else None
            if length is not None and length < needed:
                actual, expected = f"{name} of {length} bytes", f"{needed} bytes for its data type and dims"
                yield model.error(rule, f"{field}.{key}", actual, expected, "Correct one of them")


def _states(model: Model) -> Iterator[Finding]:
    names = []
    for index, state in enumerate(model.config.sequence_batching.state):
        field = f"sequence_batching.state[{index}]"
        for side in ("input_name", "output_name"):
            if not getattr(state, side):
                triton = "loads the model, which cannot use this state"
                yield model.warning("state", f"{field}.{side}", "missing", "the name of a tensor", "Add it", triton)
        if not state.initial_state:
            continue
        if len(state.initial_state) > 1:
            actual = f"a list of {len(state.initial_state)}"
            yield model.error("sequence", f"{field}.initial_state", actual, "one for each state", "Remove the others")
        if state.input_name and state.input_name in names:
            actual, expected = f"{state.input_name} again", "one initial state for each input"
            yield model.error("sequence", f"{field}.input_name", actual, expected)
        names.append(state.input_name)
        initial, inner = state.initial_state[0], f"{field}.initial_state[0]"
        if not initial.name:
            yield model.missing("sequence", f"{inner}.name", "a name")
        yield from _compare(model, "sequence", inner, initial, state, "state")
        yield from _data(model, inner, initial, "initial_state", initial.data_file)


def _batch_io(model: Model) -> Iterator[Finding]:
    """Yield the errors of batch inputs, which Triton computes from a whole batch, and of batch outputs, which Triton splits."""
    config, rule = model.config, "batch data"
    names = {side: [tensor.name for tensor in getattr(config, side)] for side in ("input", "output")}
    for side in ("batch_input", "batch_output"):
        for index, entry in enumerate(getattr(config, side)):
            field = f"{side}[{index}]"
            sources = list(entry.source_input)
            if entry.kind not in entry.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number:
                yield model.error(rule, f"{field}.kind", str(entry.kind), "a kind that Triton knows", "Change it")
            if side == "batch_output" and not entry.target_name:
                todo = "Add its target, or remove the entry"
                yield model.error(rule, f"{field}.target_name", "missing", "an output of the model", todo, effects.CRASHES)
            if len(sources) != 1:
                yield model.error(rule, f"{field}.source_input", listed(sources), "one input of the model")
            if side == "batch_input" and schema.enum_name(entry, "data_type") not in BATCH_TYPES:
                actual = schema.enum_name(entry, "data_type")
                yield model.error(rule, f"{field}.data_type", actual, f"one of {listed(BATCH_TYPES)}", "Change it")
            targets = list(entry.target_name) if side == "batch_output" else []
            for key, tensors, allowed in (("source_input", sources, names["input"]), ("target_name", targets, names["output"])):
                for number, name in enumerate(tensors):
                    inner = f"{field}.{key}[{number}]"
                    if name not in allowed:
                        todo = with_suggestion(name, allowed, "Correct the name")
                        yield model.error(rule, inner, name, f"one of {listed(allowed)}", todo)
                    elif key == "target_name" and name in tensors[:number]:
                        yield model.error(rule, inner, f"{name} again", "each target once", "Remove one of them")
