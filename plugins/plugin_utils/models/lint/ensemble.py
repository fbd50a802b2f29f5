# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Rules about ensembles: each step exists, and each tensor has one writer and a reader that agree on its type and shape."""

from __future__ import annotations

from typing import AbstractSet, Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.python_model import completes

RULE = "ensemble"


class TensorPort(NamedTuple):
    """An input or output of an ensemble or of a step. A tensor of the ensemble connects two or more ports."""

    owner: str
    dtype: str
    dims: List[int]
    batched: bool

    def shape_with_batch(self) -> List[int]:
        """Return the dims, after a batch dimension if the port has batches."""
        return [-1, *self.dims] if self.batched else self.dims

    def fits(self, other: TensorPort) -> bool:
        """Return True if Triton lets a tensor connect the two ports: their dims agree, with or without the batch dimension."""
        pairs = ((self.dims, other.dims), (self.shape_with_batch(), other.shape_with_batch()))
        same = (len(one) == len(two) and all(a == b or -1 in (a, b) for a, b in zip(one, two)) for one, two in pairs)
        return self.dtype == other.dtype and any(same)

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape_with_batch()} of {self.owner}"


def check(models: Mapping[str, Model], unread: Collection[str], refused: AbstractSet[str] = frozenset()) -> Iterator[Finding]:
    """Yield the findings about the ensembles among the models.

    `unread` are existing models that could not be read. `refused` are models that Triton refuses for other reasons.
    """
    findings_of = {name: list(_ensemble_findings(model, models, unread)) for name, model in models.items()}
    errors = (entry.model for findings in findings_of.values() for entry in findings if entry.severity == ERROR)
    with_errors = {*refused, *errors}
    refused_models, further = set(with_errors), set(with_errors)
    while further:
        # Triton refuses an ensemble if it refuses the model of a step.
        further = {name for name, model in models.items() if refused_models & _step_names(model)} - refused_models
        refused_models |= further
    for name, model in models.items():
        yield from findings_of[name]
        if name in with_errors:
            continue
        for index, step in enumerate(model.config.ensemble_scheduling.step):
            if step.model_name in refused_models and step.model_name != name:
                actual, expected = f"{step.model_name}, which Triton refuses", "a step that Triton loads"
                yield model.error(RULE, f"ensemble_scheduling.step[{index}].model_name", actual, expected, "Correct that model")


def _step_names(model: Model) -> AbstractSet[str]:
    return {step.model_name for step in model.config.ensemble_scheduling.step}


def _ensemble_findings(model: Model, models: Mapping[str, Model], unread: Collection[str]) -> Iterator[Finding]:
    if model.config.HasField("ensemble_scheduling"):
        yield from _steps(model, models, unread)
        yield from _flow(model)
        yield from _check_ports(model, models)
        yield from _branches(model, models)
        yield from _loop(model, models)
    elif model.config.platform == "ensemble":
        yield model.missing(RULE, "ensemble_scheduling", "the ensemble's steps", "Add them")


def _steps(model: Model, models: Mapping[str, Model], unread: Collection[str]) -> Iterator[Finding]:
    """Yield the errors of steps: missing fields, unknown models and versions, and too small batches."""
    if not model.config.ensemble_scheduling.step:
        yield model.missing(RULE, "ensemble_scheduling.step", "one step or more", "Add them")
    largest = model.config.max_batch_size
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}]"
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                yield model.missing(RULE, f"{field}.{name}", f"the step's {name}")
        entry = models.get(step.model_name)
        if entry is None:
            if step.model_name and step.model_name not in unread:
                place, todo = "in the repository", "Add it, or correct the name"
                # Only a model of the inventory is complete.
                if model.complete:
                    place, todo = "placed on this host", "Add it to `triton_models` for the same hosts"
                actual = f"{step.model_name}, which is not {place}"
                yield model.error(RULE, f"{field}.model_name", actual, f"a model {place}", todo)
            continue
        if entry.has_all_files and step.model_version != -1 and step.model_version not in entry.served():
            expected = f"-1 for the latest, or one of {listed(entry.served())}, which {step.model_name} serves"
            actual = str(step.model_version) if step.model_version else "0, the default of a step without a version"
            yield model.error(RULE, f"{field}.model_version", actual, expected)
        if 0 < entry.config.max_batch_size < largest:
            expected = f"at most {entry.config.max_batch_size}, the max_batch_size of step {step.model_name}"
            todo = "Reduce it, or increase the max_batch_size of the step"
            yield model.error(RULE, "max_batch_size", str(largest), expected, todo)


def _flow(model: Model) -> Iterator[Finding]:
    """Yield the errors of tensors with no writer, several writers or no reader, and of steps that wait for each other."""
    steps = model.config.ensemble_scheduling.step
    inputs = [tensor.name for tensor in model.config.input]
    writers: Dict[str, str] = dict.fromkeys(inputs, "the ensemble's input")
    read_tensors = {tensor for step in steps for tensor in step.input_map.values()}
    for index, step in enumerate(steps):
        for output, tensor in sorted(step.output_map.items()):
            field = f"ensemble_scheduling.step[{index}].output_map[{output}]"
            if tensor in writers:
                # Triton accepts a step that overwrites an input of the ensemble.
                make = model.warning if tensor in inputs else model.error
                actual = f"{tensor}, which is also {writers[tensor]}"
                yield make(RULE, field, actual, "a tensor that only this step writes", "Rename it")
            writers.setdefault(tensor, f"the output of step {step.model_name}")
    outputs = [tensor.name for tensor in model.config.output]
    for side, verb, used, tensors in (("input", "reads", read_tensors, inputs), ("output", "writes", writers, outputs)):
        for index, name in enumerate(tensors):
            if name not in used:
                actual, expected = f"{name}, which no step {verb}", f"a tensor that a step {verb}"
                yield model.error(RULE, f"{side}[{index}].name", actual, expected, "Map it, or remove it")
    for index, step in enumerate(steps):
        field = f"ensemble_scheduling.step[{index}]"
        for name, tensor in sorted(step.input_map.items()):
            if tensor not in writers:
                actual, expected = f"{tensor}, which nothing writes", f"one of {listed(sorted(writers))}"
                yield model.error(RULE, f"{field}.input_map[{name}]", actual, expected, "Correct the name")
        for name, tensor in sorted(step.output_map.items()):
            if tensor not in read_tensors and tensor not in outputs:
                actual, expected = f"{tensor}, which nothing reads", "a tensor that a step reads, or an output"
                yield model.error(RULE, f"{field}.output_map[{name}]", actual, expected, "Remove it")
    # Tensors without a writer count as available here, because they are already reported above.
    waiting = _in_order(steps, {*inputs, *(read_tensors - set(writers))})[1]
    if waiting:
        actual = f"circular: {listed(step.model_name for _index, step in waiting)} wait for each other"
        yield model.error(RULE, "ensemble_scheduling.step", actual, "an order in which the steps can run", "Correct their maps")


def _in_order(steps: Sequence[Any], available: Collection[str]) -> Tuple[List[Tuple[int, Any]], List[Tuple[int, Any]]]:
    """Return two lists of (index, step): the steps in an order in which they can run, and the steps that can never run.

    `available` has the tensors that exist before the first step. A step of the second list waits for a tensor that no step of the
    first list writes.
    """
    ready, waiting = set(available), list(enumerate(steps))
    ordered: List[Tuple[int, Any]] = []
    while True:
        runnable = [entry for entry in waiting if set(entry[1].input_map.values()) <= ready]
        if not runnable:
            return ordered, waiting
        ordered += runnable
        ready |= {tensor for _index, step in runnable for tensor in step.output_map.values()}
        waiting = [entry for entry in waiting if entry not in runnable]


def _check_ports(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """Yield the errors of maps with unknown names, of inputs without a map, and of tensors whose ports differ."""
    batched = model.config.max_batch_size > 0
    tensors: Dict[str, TensorPort] = {}
    for _side, _field, entry in model.tensors():
        tensors.setdefault(entry.name, _port(model.name, entry, batched, True))
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        step_model = models.get(step.model_name)
        if step_model is None:
            continue
        for side in ("input", "output"):
            step_tensors = {tensor.name: tensor for tensor in getattr(step_model.config, side)}
            mapped = getattr(step, f"{side}_map")
            field = f"ensemble_scheduling.step[{index}].{side}_map"
            # If the config has no tensors, the backend or a model.py can still add them when Triton loads the model.
            if not step_tensors and (
                completes(step_model) or step_model.backend == "rbln" or step_model.backend not in backends.ALL_BACKENDS
            ):
                continue
            for name, entry in step_tensors.items():
                if side == "input" and name not in mapped and not entry.optional:
                    actual, expected = f"without {name}", f"a map of every input that {step.model_name} needs"
                    yield model.error(RULE, field, actual, expected, "Map it")
            for name, tensor in sorted(mapped.items()):
                if name not in step_tensors:
                    expected = f"one of {listed(step_tensors)}, the {side}s of {step.model_name}"
                    yield model.error(RULE, f"{field}[{name}]", name, expected, "Correct the name")
                    continue
                port = _port(step.model_name, step_tensors[name], step_model.config.max_batch_size > 0, False)
                first = tensors.setdefault(tensor, port)
                if not port.fits(first):
                    yield model.error(RULE, f"{field}[{name}]", f"{tensor} as {port}", str(first), "Make both equal")


def _port(owner: str, tensor: Any, batched: bool, reshaped: bool) -> TensorPort:
    """Return a port. Triton applies a reshape only to the ensemble's own inputs and outputs."""
    dims = tensor.reshape.shape if reshaped and tensor.HasField("reshape") else tensor.dims
    return TensorPort(owner, schema.enum_name(tensor, "data_type"), list(dims), batched)


def _branches(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """Yield the errors of steps and outputs that combine tensors of different decoupled steps.

    Either all inputs of a step depend on the same decoupled step, or none of them depends on a decoupled step. The same applies to
    the outputs of the ensemble. Source: ValidateEnsembleConfig of Triton's ensemble_utils.cc.
    """
    steps = model.config.ensemble_scheduling.step
    # {tensor: index of the last decoupled step that it depends on, or None if there is no such step}
    origin: Dict[str, Optional[int]] = {tensor.name: None for tensor in model.config.input}
    because = "as a decoupled step may respond any number of times"
    for index, step in _in_order(steps, list(origin))[0]:
        sources = {origin[tensor] for tensor in step.input_map.values()}
        if len(sources) > 1:
            actual = f"{step.model_name} with inputs {_origins(steps, sources)}"
            expected = f"inputs from one decoupled step, {because}"
            yield model.error(RULE, f"ensemble_scheduling.step[{index}]", actual, expected, "Change the maps")
        decoupled = _decoupled(step.model_name, models, ())
        for tensor in step.output_map.values():
            origin.setdefault(tensor, index if decoupled else next(iter(sources), None))
    output_origins = {origin[entry.name] for entry in model.config.output if entry.name in origin}
    if len(output_origins) > 1:
        actual, expected = _origins(steps, output_origins), f"outputs of one decoupled step, {because}"
        yield model.error(RULE, "output", actual, expected, "Change the maps")


def _origins(steps: Sequence[Any], sources: Collection[Optional[int]]) -> str:
    words = ("from no decoupled step" if source is None else f"from decoupled {steps[source].model_name}" for source in sources)
    return " and ".join(sorted(words))


def _decoupled(name: str, models: Mapping[str, Model], above: Tuple[str, ...]) -> bool:
    """Return True if a model can send several responses to a request. For an ensemble, the configs of its steps decide."""
    model = models.get(name)
    if model is None or name in above:
        return False
    if model.config.HasField("ensemble_scheduling"):
        return any(_decoupled(step, models, (*above, name)) for step in _step_names(model))
    return bool(model.config.model_transaction_policy.decoupled)


def _loop(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """Yield the error of an ensemble that contains itself, directly or through other ensembles."""

    def path_from(name: str, parents: Tuple[str, ...]) -> Optional[Tuple[str, ...]]:
        if name == model.name and parents:
            return (*parents, name)
        entry = models.get(name)
        if entry is None or name in parents:
            return None
        paths = (path_from(step.model_name, (*parents, name)) for step in entry.config.ensemble_scheduling.step)
        return next((path for path in paths if path), None)

    circle = path_from(model.name, ())
    if circle:
        expected = "an ensemble that does not contain itself"
        yield model.error(RULE, "ensemble_scheduling.step", " -> ".join(circle), expected, "Remove one of the steps")
