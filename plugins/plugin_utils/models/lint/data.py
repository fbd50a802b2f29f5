"""Rules about data that the config brings along: warm-ups, first states of sequences, and what is made from a batch.

From triton-inference-server/core: GenerateWarmupData of backend_model_instance.cc, GenerateInitialStateData of
sequence_batch_scheduler.cc, ValidateBatchIO of model_config_utils.cc.
"""

from __future__ import annotations

import os
from typing import Any, Iterator, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ENDS, IGNORES, Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.suggest import meant

# Bytes of one element. A string of no letters is its length alone, of 4 bytes.
SIZES = {
    **dict.fromkeys(("TYPE_BOOL", "TYPE_UINT8", "TYPE_INT8"), 1),
    **dict.fromkeys(("TYPE_UINT16", "TYPE_INT16", "TYPE_FP16", "TYPE_BF16"), 2),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_INT32", "TYPE_FP32", "TYPE_STRING"), 4),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_INT64", "TYPE_FP64"), 8),
}
BATCH_TYPES = ("TYPE_INT32", "TYPE_FP32")
CORRECT = "correct it"


def check(model: Model) -> Iterator[Finding]:
    """Every finding about such data. An ensemble may have no warm-up at all, which is told elsewhere."""
    if not model.ensemble:
        yield from _warm_ups(model)
    yield from _states(model)
    yield from _batch_io(model)


def _warm_ups(model: Model) -> Iterator[Finding]:
    config = model.config
    inputs = {tensor.name: tensor for tensor in config.input}
    controls = [tensor.name for tensor in config.sequence_batching.control_input]
    for index, sample in enumerate(config.model_warmup):
        field = f"model_warmup[{index}]"
        if not sample.batch_size:
            yield model.warning("warm-up", f"{field}.batch_size", "nothing", "1 or more", "write it down", IGNORES)
            continue
        if 0 < config.max_batch_size < sample.batch_size:
            wanted = f"at most {config.max_batch_size}, the max_batch_size"
            yield model.error("warm-up", f"{field}.batch_size", str(sample.batch_size), wanted, CORRECT)
        if config.max_batch_size == 0 and sample.batch_size > 1:
            wanted = "1 with max_batch_size 0"
            yield model.error("warm-up", f"{field}.batch_size", str(sample.batch_size), wanted, CORRECT, ENDS)
        missing = [name for name, tensor in inputs.items() if not tensor.optional and name not in sample.inputs]
        if missing:
            found = f"none for {listed(missing)}"
            yield model.error("warm-up", f"{field}.inputs", found, "data for every input that is not optional", "add it")
        for name, given in sorted(sample.inputs.items()):
            inner = f"{field}.inputs[{name}]"
            yield from _data(model, inner, given, ("warmup", given.input_data_file), "zero_data, random_data or input_data_file")
            if name in inputs:
                yield from _like_input(model, inner, given, inputs[name])
            elif inputs and name not in controls:
                wanted, do = f"one of {listed(sorted(inputs))}", meant(name, inputs, "correct the name, or take it out")
                yield model.warning("warm-up", inner, name, wanted, do, "gives the backend an input that no request has")


def _like_input(model: Model, field: str, entry: Any, of: Any) -> Iterator[Finding]:
    """A warm-up's input has the dtype and the shape of the model's."""
    if entry.data_type != of.data_type and of.data_type:
        found, wanted = schema.word(entry, "data_type"), f"{schema.word(of, 'data_type')}, the input's"
        yield model.error("warm-up", f"{field}.data_type", found, wanted, CORRECT)
    if of.dims and min(entry.dims, default=0) >= 0 and not _fits(entry.dims, of.dims):
        found, wanted = str(list(entry.dims)), f"sizes for {list(of.dims)}, the input's, without the batch"
        yield model.error("warm-up", f"{field}.dims", found, wanted, CORRECT)


def _data(model: Model, field: str, entry: Any, file: Tuple[str, str], kinds: str) -> Iterator[Finding]:
    """Sizes are known, there is data, and a file has enough of it; `file` is its directory and name."""
    rule, (room, name) = ("warm-up" if file[0] == "warmup" else "files"), file
    key = "input_data_file" if room == "warmup" else "data_file"
    choice = entry.WhichOneof("input_data_type" if room == "warmup" else "state_data")
    if any(size < 0 for size in entry.dims):
        yield model.error(rule, f"{field}.dims", str(list(entry.dims)), "a size for each, as data has one", "write the sizes")
    if choice is None:
        yield model.error(rule, field, "no data", kinds, "write one of them")
    elif choice == key:
        path = os.path.normpath(os.path.join(room, name))
        if path not in model.files or room not in model.tree:
            yield model.error(
                rule, f"{field}.{key}", f"{name}, which is not there", f"a file below {room}/", "add it, or correct it"
            )
        elif schema.word(entry, "data_type") != "TYPE_STRING" and min(entry.dims, default=0) >= 0:
            there, needed = _length(model, path), _bytes(entry)
            if there is not None and there < needed:
                found, wanted = f"{there} bytes in {name}", f"{needed} for its data type and dims"
                yield model.error(rule, f"{field}.{key}", found, wanted, "correct one of the two")


def _length(model: Model, path: str) -> Any:
    """Bytes of a file; None for one that comes from elsewhere."""
    try:
        return os.path.getsize(os.path.join(model.directory, path))
    except OSError:
        return None


def _bytes(entry: Any) -> int:
    count = SIZES.get(schema.word(entry, "data_type"), 0)
    for size in entry.dims:
        count *= size
    return count


def _fits(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(sizes) == len(wanted) and all(b in (-1, a) for a, b in zip(sizes, wanted))


def _states(model: Model) -> Iterator[Finding]:
    """Implicit states of sequences, and what they are at first."""
    names = []
    for index, state in enumerate(model.config.sequence_batching.state):
        field = f"sequence_batching.state[{index}]"
        for side in ("input_name", "output_name"):
            if not getattr(state, side):
                triton = "loads the model, which cannot ask for this state"
                yield model.warning("state", f"{field}.{side}", "nothing", "the name of a tensor", "write it down", triton)
        if not state.initial_state:
            continue
        if len(state.initial_state) > 1:
            found = f"{len(state.initial_state)} of them"
            yield model.error("sequence", f"{field}.initial_state", found, "one for each state", "take the others out")
        if state.input_name and state.input_name in names:
            found, wanted = f"{state.input_name} a second time", "one first state for each"
            yield model.error("sequence", f"{field}.input_name", found, wanted, CORRECT)
        names.append(state.input_name)
        first, inner = state.initial_state[0], f"{field}.initial_state[0]"
        if not first.name:
            yield model.error("sequence", f"{inner}.name", "nothing", "a name", "write it down")
        if first.data_type != state.data_type:
            found, wanted = schema.word(first, "data_type"), f"{schema.word(state, 'data_type')}, the state's"
            yield model.error("sequence", f"{inner}.data_type", found, wanted, CORRECT)
        if min(first.dims, default=0) >= 0 and not _fits(first.dims, state.dims):
            found, wanted = str(list(first.dims)), f"sizes for {list(state.dims)}, the state's"
            yield model.error("sequence", f"{inner}.dims", found, wanted, CORRECT)
        yield from _data(model, inner, first, ("initial_state", first.data_file), "zero_data or data_file")


def _batch_io(model: Model) -> Iterator[Finding]:
    """What Triton makes from a whole batch, and scatters over one."""
    config = model.config
    names = {side: [tensor.name for tensor in getattr(config, side)] for side in ("input", "output")}
    for side in ("batch_input", "batch_output"):
        for index, entry in enumerate(getattr(config, side)):
            field = f"{side}[{index}]"
            sources = list(entry.source_input)
            if entry.kind not in entry.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number:
                yield model.error("batch data", f"{field}.kind", str(entry.kind), "a kind that Triton knows", "change it")
            if side == "batch_output" and not entry.target_name:
                do = "write its target down, or take the entry out"
                yield model.error("batch data", f"{field}.target_name", "nothing", "an output of the model", do, ENDS)
            if len(sources) != 1:
                yield model.error("batch data", f"{field}.source_input", listed(sources), "one input of the model", CORRECT)
            if side == "batch_input" and schema.word(entry, "data_type") not in BATCH_TYPES:
                found = schema.word(entry, "data_type")
                yield model.error("batch data", f"{field}.data_type", found, f"one of {listed(BATCH_TYPES)}", "change it")
            targets = list(entry.target_name) if side == "batch_output" else []
            for key, given, known in (("source_input", sources, names["input"]), ("target_name", targets, names["output"])):
                for place, name in enumerate(given):
                    if name not in known:
                        do = meant(name, known, "correct the name")
                        yield model.error("batch data", f"{field}.{key}[{place}]", name, f"one of {listed(known)}", do)
                    elif key == "target_name" and name in given[:place]:
                        yield model.error("batch data", f"{field}.{key}[{place}]", f"{name} again", "each once", "take one out")
