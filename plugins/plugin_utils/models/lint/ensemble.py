"""Rules about ensembles: their steps are there, every tensor is written once and read, and both ends of it fit."""

from __future__ import annotations

from typing import AbstractSet, Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint import backends, schema
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.finding import ERROR, Finding, listed
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.model import Model
from ansible_collections.npufleet.triton.plugins.plugin_utils.models.lint.python_model import completes

RULE = "ensemble"


class Place(NamedTuple):
    """Where steps have to be, and what to do about one that is not."""

    name: str
    add: str


class End(NamedTuple):
    """One end of an ensemble's tensor: whose it is, and what it is there."""

    owner: str
    dtype: str
    dims: List[int]
    batched: bool

    def whole(self) -> List[int]:
        """The shape with its batch dimension."""
        return [-1, *self.dims] if self.batched else self.dims

    def fits(self, other: End) -> bool:
        """Whether Triton lets the two be one tensor: dims agree, or agree with the batch dimension counted in."""
        pairs = ((self.dims, other.dims), (self.whole(), other.whole()))
        return self.dtype == other.dtype and any(
            len(pair) == len(two) and all(a == b or -1 in (a, b) for a, b in zip(pair, two)) for pair, two in pairs
        )

    def __str__(self) -> str:
        return f"{self.dtype} {self.whole()} of {self.owner}"


def check(models: Mapping[str, Model], unread: Collection[str], place: Place, refused: AbstractSet[str]) -> Iterator[Finding]:
    """Every finding about the ensembles among the models; `refused` are those that Triton does not load."""
    own: Dict[str, List[Finding]] = {name: list(_own(model, models, unread, place)) for name, model in models.items()}
    broken = set(refused) | {name for name, found in own.items() if any(finding.severity == ERROR for finding in found)}
    while True:
        # An ensemble of ensembles is refused with them.
        more = {name for name, model in models.items() if broken & _names(model)} - broken
        if not more:
            break
        broken |= more
    for name, model in models.items():
        yield from own[name]
        if name in refused or any(finding.severity == ERROR for finding in own[name]):
            continue
        for index, step in enumerate(model.config.ensemble_scheduling.step):
            if step.model_name in broken and step.model_name != name:
                found, wanted = f"{step.model_name}, which Triton refuses", "steps that are loaded"
                yield model.error(RULE, f"ensemble_scheduling.step[{index}].model_name", found, wanted, "correct that model")


def _names(model: Model) -> AbstractSet[str]:
    """Return the names of an ensemble's steps."""
    return {step.model_name for step in model.config.ensemble_scheduling.step}


def _own(model: Model, models: Mapping[str, Model], unread: Collection[str], place: Place) -> Iterator[Finding]:
    """Findings about one ensemble."""
    if model.config.HasField("ensemble_scheduling") or model.config.platform == "ensemble":
        if model.config.HasField("ensemble_scheduling"):
            yield from _steps(model, models, unread, place)
            yield from _flow(model)
            yield from _ends(model, models)
            yield from _branches(model, models)
            yield from _loop(model, models)
        else:
            yield model.error(RULE, "ensemble_scheduling", "nothing", "the ensemble's steps", "write them down")


def _steps(model: Model, models: Mapping[str, Model], unread: Collection[str], place: Place) -> Iterator[Finding]:
    """Each step says its model and both maps, and the model is there with that version and for that batch."""
    if not model.config.ensemble_scheduling.step:
        yield model.error(RULE, "ensemble_scheduling.step", "none", "one step or more", "write them down")
    largest = model.config.max_batch_size
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}]"
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                yield model.error(RULE, f"{field}.{name}", "nothing", f"the step's {name}", "write it down")
        entry = models.get(step.model_name)
        if entry is None:
            if step.model_name and step.model_name not in unread:
                found = f"{step.model_name}, which is not {place.name}"
                yield model.error(RULE, f"{field}.model_name", found, "every step there", place.add)
            continue
        if entry.settled and step.model_version != -1 and step.model_version not in entry.served():
            wanted = f"-1 for the latest, or one of {listed(entry.served())}, which {step.model_name} serves"
            found = str(step.model_version) if step.model_version else "0, which a step asks for that gives none"
            yield model.error(RULE, f"{field}.model_version", found, wanted, "correct it")
        if 0 < entry.config.max_batch_size < largest:
            found = f"{largest}, its step {step.model_name} takes {entry.config.max_batch_size}"
            yield model.error(RULE, "max_batch_size", found, "what every step takes", "make it smaller, or the step's larger")


def _flow(model: Model) -> Iterator[Finding]:
    """Every tensor is written once, by an input or a step, and read; no step waits for what comes after it."""
    steps = model.config.ensemble_scheduling.step
    inputs = [given.name for given in model.config.input]
    writers: Dict[str, str] = dict.fromkeys(inputs, "the ensemble's input")
    read = {tensor for step in steps for tensor in step.input_map.values()}
    for index, step in enumerate(steps):
        for output, tensor in sorted(step.output_map.items()):
            field = f"ensemble_scheduling.step[{index}].output_map[{output}]"
            if tensor in writers:
                found = f"{tensor}, which is {writers[tensor]} already"
                # Triton takes a step that writes over an input.
                make = model.warning if tensor in inputs else model.error
                yield make(RULE, field, found, "each tensor written once", "give it another name")
            writers.setdefault(tensor, f"the output of step {step.model_name}")
    outputs = {entry.name for entry in model.config.output}
    for index, name in enumerate(inputs):
        if name not in read:
            found = f"{name}, which no step reads"
            yield model.error(RULE, f"input[{index}].name", found, "a step that does", "map it, or take it out")
    for index, made in enumerate(model.config.output):
        if made.name not in writers:
            found = f"{made.name}, which no step writes"
            yield model.error(RULE, f"output[{index}].name", found, "a step that does", "map it, or take it out")
    for index, step in enumerate(steps):
        field = f"ensemble_scheduling.step[{index}]"
        for name, tensor in sorted(step.input_map.items()):
            if tensor not in writers:
                found, wanted = f"{tensor}, which nothing writes", f"one of {listed(sorted(writers))}"
                yield model.error(RULE, f"{field}.input_map[{name}]", found, wanted, "correct the name")
        for name, tensor in sorted(step.output_map.items()):
            if tensor not in read and tensor not in outputs:
                found, wanted = f"{tensor}, which nothing reads", "a step or an output that does"
                yield model.error(RULE, f"{field}.output_map[{name}]", found, wanted, "take it out")
    yield from _waiting(model, steps, writers)


def _waiting(model: Model, steps: Sequence[Any], writers: Mapping[str, str]) -> Iterator[Finding]:
    """Steps that wait for each other."""
    ready = {tensor.name for tensor in model.config.input}
    # A tensor that nothing writes is told on its own.
    ready |= {tensor for step in steps for tensor in step.input_map.values() if tensor not in writers}
    left = list(steps)
    while True:
        able = [step for step in left if set(step.input_map.values()) <= ready]
        if not able:
            break
        ready |= {tensor for step in able for tensor in step.output_map.values()}
        left = [step for step in left if step not in able]
    if left:
        found = f"steps that wait for each other: {listed(step.model_name for step in left)}"
        yield model.error(RULE, "ensemble_scheduling.step", found, "an order in which they can run", "correct their maps")


def _ends(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """Steps are mapped by the names that they have, and both ends of each tensor fit."""
    batched = model.config.max_batch_size > 0
    tensors: Dict[str, End] = {}
    for side in ("input", "output"):
        for entry in getattr(model.config, side):
            tensors.setdefault(entry.name, _end(model.name, entry, batched, True))
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        other = models.get(step.model_name)
        if other is None:
            continue
        for side in ("input", "output"):
            known = {given.name: given for given in getattr(other.config, side)}
            mapped = getattr(step, f"{side}_map")
            field = f"ensemble_scheduling.step[{index}].{side}_map"
            # A backend may complete a config that says nothing; for Python its model.py does.
            if not known and (completes(other) or other.backend == "rbln" or other.backend not in backends.ALL):
                continue
            for name, entry in known.items():
                if side == "input" and name not in mapped and not entry.optional:
                    found = f"no {name}, which {step.model_name} wants"
                    yield model.error(RULE, field, found, "each of its inputs mapped", "map it")
            for name, tensor in sorted(mapped.items()):
                if name not in known:
                    wanted = f"one of {listed(known)}, the {side}s of {step.model_name}"
                    yield model.error(RULE, f"{field}[{name}]", name, wanted, "correct the name")
                    continue
                end = _end(step.model_name, known[name], other.config.max_batch_size > 0, False)
                first = tensors.setdefault(tensor, end)
                if not end.fits(first):
                    yield model.error(RULE, f"{field}[{name}]", f"{tensor} as {end}", str(first), "let both ends be one")


def _end(owner: str, entry: Any, batched: bool, reshaped: bool) -> End:
    """A tensor of a config. Triton counts the reshape of an ensemble's own ends alone."""
    dims = entry.reshape.shape if reshaped and entry.HasField("reshape") else entry.dims
    return End(owner, schema.word(entry, "data_type"), list(dims), batched)


def _branches(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """A step's inputs come from the same decoupled step, or all from none, and so do the ensemble's outputs.

    From ValidateEnsembleConfig of Triton's ensemble_utils.cc.
    """
    steps = model.config.ensemble_scheduling.step
    # The decoupled step that each tensor comes from last, None for one that is asked for once
    origin: Dict[str, Optional[int]] = {given.name: None for given in model.config.input}
    waiting = list(enumerate(steps))
    while True:
        able = [(index, step) for index, step in waiting if all(tensor in origin for tensor in step.input_map.values())]
        if not able:
            break
        waiting = [entry for entry in waiting if entry not in able]
        for index, step in able:
            sources = {origin[tensor] for tensor in step.input_map.values()}
            if len(sources) > 1:
                found = f"{step.model_name}, whose inputs come {_origins(steps, sources)}"
                wanted = "inputs from one decoupled step, as each answers as often as it likes"
                yield model.error(RULE, f"ensemble_scheduling.step[{index}]", found, wanted, "change the maps")
            decoupled = _decoupled(step.model_name, models, ())
            for tensor in step.output_map.values():
                origin.setdefault(tensor, index if decoupled else next(iter(sources), None))
    ends = {origin[entry.name] for entry in model.config.output if entry.name in origin}
    if len(ends) > 1:
        found = "outputs that come " + _origins(steps, ends)
        wanted = "outputs of one decoupled step, as each answers as often as it likes"
        yield model.error(RULE, "output", found, wanted, "change the maps")


def _origins(steps: Sequence[Any], sources: Collection[Optional[int]]) -> str:
    """Return where tensors come from, in words."""
    words = ("past every decoupled step" if source is None else f"from decoupled {steps[source].model_name}" for source in sources)
    return " and ".join(sorted(words))


def _decoupled(name: str, models: Mapping[str, Model], above: Tuple[str, ...]) -> bool:
    """Return True if a model may answer several times; an ensemble does if one of its steps does, whatever its config says."""
    model = models.get(name)
    if model is None or name in above:
        return False
    if model.config.HasField("ensemble_scheduling"):
        return any(_decoupled(step, models, (*above, name)) for step in _names(model))
    return bool(model.config.model_transaction_policy.decoupled)


def _loop(model: Model, models: Mapping[str, Model]) -> Iterator[Finding]:
    """Ensembles that have each other as steps."""

    def way(name: str, before: Tuple[str, ...]) -> Optional[Tuple[str, ...]]:
        if name == model.name and before:
            return (*before, name)
        entry = models.get(name)
        if entry is None or name in before:
            return None
        ways = (way(step.model_name, (*before, name)) for step in entry.config.ensemble_scheduling.step)
        return next((found for found in ways if found), None)

    found = way(model.name, ())
    if found:
        do = "take one of the steps out"
        yield model.error(RULE, "ensemble_scheduling.step", " -> ".join(found), "no ensemble within itself", do)
