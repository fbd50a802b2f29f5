"""One change of a supervised server and its models, from the look to the proof, and the way back where it is not proven.

It needs no lease: one process at a time changes a directory, and the kernel tells the next one when that has ended.
"""

from __future__ import annotations

# Asks in processes of the SDK's Python, which run_command of a module does not. pylint: disable=ansible-bad-function
import base64
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.npufleet.triton.plugins.module_utils import failures, secret, store
from ansible_collections.npufleet.triton.plugins.module_utils.change import cards, releases
from ansible_collections.npufleet.triton.plugins.module_utils.change.docker import ContainerError
from ansible_collections.npufleet.triton.plugins.module_utils.concerns import models, server
from ansible_collections.npufleet.triton.plugins.module_utils.engine import check_client
from ansible_collections.npufleet.triton.plugins.module_utils.kernel import locks, trees
from ansible_collections.npufleet.triton.plugins.module_utils.plan import Item, item, sentence
from ansible_collections.npufleet.triton.plugins.module_utils.process import conditions, supervised
from ansible_collections.npufleet.triton.plugins.module_utils.process.supervised import ProcessError
from ansible_collections.npufleet.triton.plugins.module_utils.store import blobs
from ansible_collections.npufleet.triton.plugins.module_utils.system import capture
from ansible_collections.npufleet.triton.plugins.module_utils.triton import keys, log, stuck_load
from ansible_collections.npufleet.triton.plugins.module_utils.triton import repository as repository_api
from ansible_collections.npufleet.triton.plugins.module_utils.triton.served import asked, read_served, version_of

CONCERN = "server"
# Seconds for another change to end, and between two looks at a server
WAIT, LOOK = 60.0, 0.5
# What of the environment that Ansible runs in a server has too: all else is of a terminal, and another one tomorrow
KEPT = ("HOME", "LD_LIBRARY_PATH", "RBLN_DEVICES", "RBLN_VISIBLE_DEVICES")
# Errors whose message is meant for an operator. Any other error restores the previous state as well, and is reported with its place
EXPECTED = (
    ProcessError,
    ContainerError,
    subprocess.TimeoutExpired,
    repository_api.Refused,
    check_client.ClientError,
    store.StoreError,
    OSError,
)


class Unproven(ProcessError):
    """It does not serve what was asked for, or answers wrong."""

    def __init__(self, why: str, checks: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(why)
        self.checks = checks


class Outcome(NamedTuple):
    """What came of it: `why` is None where it is proven, `back` what was put back then."""

    did: List[str]
    why: Optional[str] = None
    back: str = ""
    checks: Sequence[Mapping[str, Any]] = ()


def key_path(root: str) -> str:
    """Where the key of this server is."""
    return os.path.join(root, "server", "key")


def python_path(root: str) -> str:
    """The Python that has the SDK and the client: beside that of the container, which stays as it is."""
    return os.path.join(root, "venv", "bin", "python3")


def backends_path(root: str, files: Mapping[str, str]) -> str:
    """The directory of the server's backends with ours: another content is another directory."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return os.path.join(root, "backends", digest[:12])


class Server:
    """The server of one directory. `order` is what the controller hands over (plugins/action/triton_process.py)."""

    def __init__(self, root: str, order: Mapping[str, Any]) -> None:
        self.root, self.order = root, order
        self.who = store.Run(order["run"], order["by"], order["host"])
        self.models: Dict[str, Any] = order["server"]["models"]
        self.did: List[str] = []
        self.answered: List[Dict[str, Any]] = []
        # How often loads were repeated
        self.rounds = 0

    # What there is

    def config(self) -> Dict[str, Any]:
        """What the supervisor has to be started with."""
        program = conditions.tritonserver() or "tritonserver"
        known = set(conditions.options(program))
        line = [word for word in self.order["command"] if not self._unknown(word, known)]
        line = [program if word == "tritonserver" else word for word in line]
        line += ["--backend-directory=" + backends_path(self.root, self.order["backends"])]
        # Triton's stub takes the Python that it finds first
        bins = [os.path.dirname(python_path(self.root)), os.path.dirname(program), conditions.PATHS]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment.update(self.order["environment"], PATH=":".join(bins), VIRTUAL_ENV=os.path.join(self.root, "venv"))
        limit = self.order["stuck_load_limit"]
        return supervised.wanted(line, environment, self.order["stop_timeout"], self.order["supervisor"]["digest"], limit)

    def told(self, text: str) -> str:
        """What the server says, without values of its options and its environment that may be secret and that it repeats."""
        key = secret.new_key()
        environment, line = self.order["environment"], self.order["command"]
        shown = [*secret.seal_values(environment, key).values(), *secret.seal_command(line, key), keys.SHELL]
        return secret.remove_values(text, [*environment.values(), *line], map(str, shown))

    def _unknown(self, word: str, known: Any) -> bool:
        name = word[2:].partition("=")[0]
        return word.startswith("--") and name in self.order["maybe"] and name not in known

    def look(self) -> Tuple[Dict[str, Any], List[Item]]:
        """(what was read, the differences)."""
        seen = models.read(self.order["models"])
        plan = models.diff(self.order["models"], seen)
        found, config = supervised.running(self.root), self.config()
        flaw = keys.flaw(key_path(self.root), self.order["fingerprint"])["words"] if self.order["server"]["key"] else None
        if flaw:
            plan.append(item(CONCERN, "key", flaw, "a key for its owner alone", "key"))
        if found is None:
            plan.append(item(CONCERN, "process", None, "a supervised tritonserver", "start"))
            return seen, plan
        differs = sorted(name for name in config if found.get(name) != config[name])
        if differs or not os.path.isdir(backends_path(self.root, self.order["backends"])):
            words = ", ".join(differs) or "backends"
            plan.append(item(CONCERN, "process", "started with other " + words, "with those of the inventory", "restart"))
            return seen, plan
        served = read_served(self.order["server"])
        if served is None:
            plan.append(
                item(CONCERN, "http", "no answer: " + self.told(supervised.last_words(self.root)), "the model index", "wait")
            )
        else:
            plan += server.diff_models(self.order["server"], served)
        return seen, plan

    # The change

    def change(self) -> Outcome:
        """Change, prove and keep, or put back. Raises ProcessError where somebody else is at it."""
        os.makedirs(self.root, exist_ok=True)
        with locks.opened(os.path.join(self.root, "process.lock")) as lock:
            if not locks.take(lock, time.monotonic() + WAIT):
                raise ProcessError(f"another run changes {self.root}: run again when it has ended")
            before = supervised.running(self.root)
            try:
                if self._bring():
                    self._prove()
                    self._ask()
                    self._store("proven", {"why": "", "keep": self.order["keep"]})
            except Exception as error:
                why = self.told(failures.reason(error, EXPECTED))
                return Outcome(self.did, why, self.told(self._put_back(before, why)), getattr(error, "checks", ()))
        return Outcome(self.did, checks=self.answered)

    def _bring(self) -> bool:
        """Have the server serve what is wanted; whether there was anything to do."""
        seen, plan = self.look()
        if not plan:
            return False
        todo = {entry["action"] for entry in plan if entry["concern"] == CONCERN}
        if "key" in todo:
            self._write_key()
        self._release(seen, plan)
        if todo & {"start", "restart", "key"}:
            self._backends()
            self._cards()
            self._start()
        elif self.order["server"]["mode"] == "explicit":
            self._load(self.models)
        elif self.order["server"]["mode"] == "none":
            self._start()
        return True

    def _release(self, seen: Mapping[str, Any], plan: Sequence[Item]) -> None:
        names = [entry["name"] for entry in plan if (entry["concern"], entry["action"]) == (models.CONCERN, "release")]
        withdraw = [entry["name"] for entry in plan if (entry["concern"], entry["action"]) == (models.CONCERN, "withdraw")]
        if not any(entry["concern"] == models.CONCERN for entry in plan):
            return
        with store.locked(self.root, time.monotonic() + WAIT):
            store.prepare(self.root)
        incoming = os.path.join(self.root, "incoming")
        os.makedirs(incoming, exist_ok=True)
        for digest in seen["missing"]:
            # Whoever wrote the file goes on to have it: the store takes a copy
            shutil.copyfile(self.order["blobs"][digest], os.path.join(incoming, digest))
        blobs.ingest(self.root, incoming, seen["missing"])
        self._store("released", {"releases": {name: self.order["releases"][name] for name in names}}, withdraw)

    def _store(self, state: str, params: Mapping[str, Any], withdraw: Sequence[str] = ()) -> Mapping[str, Any]:
        given = {"models": [], "releases": {}, "incoming": None, "why": "", "hung": [], "keep": self.order["keep"]}
        answer = releases.apply(self.root, self.who, {**given, **params, "state": state}, list(withdraw), self.did.append)
        if state != "proven":
            self.did += [f"{name} is linked to {move['to'] or 'no more'}" for name, move in (answer.get("moves") or {}).items()]
        return answer

    def _write_key(self) -> None:
        path = key_path(self.root)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.chmod(os.path.dirname(path), 0o700)
        draft = path + ".draft"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as sink:
            sink.write(self.order["api_key"] or secrets.token_hex(32))
        os.replace(draft, path)
        self.did.append(f"wrote {path}")

    def _backends(self) -> None:
        """Ours beside those of the container, by links: nothing is written where it has its own."""
        place = backends_path(self.root, self.order["backends"])
        if os.path.isdir(place):
            return
        theirs = os.path.join(conditions.server_home(conditions.tritonserver() or ""), "backends")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        staging = tempfile.mkdtemp(prefix=".", dir=os.path.dirname(place))
        for path, content in self.order["backends"].items():
            target = os.path.join(staging, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as sink:
                sink.write(base64.b64decode(content))
        for name in os.listdir(theirs):
            if not os.path.lexists(os.path.join(staging, name)):
                os.symlink(os.path.join(theirs, name), os.path.join(staging, name))
        os.chmod(staging, 0o755)
        os.rename(staging, place)
        self.did.append(f"made {place}")
        for other in os.listdir(os.path.dirname(place)):
            # The one of the server that runs until now is what it goes back to
            if other != os.path.basename(place) and not self._in_use(other):
                trees.remove(os.path.join(os.path.dirname(place), other))

    def _in_use(self, name: str) -> bool:
        command = (supervised.running(self.root) or {}).get("command", [])
        return any(word.endswith("/backends/" + name) for word in command)

    def _cards(self) -> None:
        """What the SDK sees of the cards, before anything that serves is stopped."""
        if self.order["cards"] is None:
            return
        environment = {**self.config()["environment"], "LC_ALL": "C", "LANGUAGE": "C"}
        line = [python_path(self.root), "-c", cards.PROGRAM]
        done = capture(line, cards.LIMIT, env=environment)
        cards.judge(done.returncode, done.stderr + done.stdout, self.order["cards"], "this container")

    def _start(self) -> None:
        if supervised.stop(self.root):
            self.did.append("stopped the server")
        self.said = supervised.log_size(self.root)
        supervised.start(self.root, self.config(), self.order["supervisor"]["archive"], python_path(self.root))
        self.did.append("started the server")

    def _load(self, wanted: Mapping[str, Any]) -> None:
        """By gRPC as on hosts, with the client of the same Python."""

        def run(command: List[str], seconds: float) -> Tuple[int, str]:
            # The port is the inventory's here
            line = [python_path(self.root), *command[1:3], json.dumps({**json.loads(command[3]), "port": self.order["grpc_port"]})]
            try:
                done = capture(line, seconds)
            except subprocess.TimeoutExpired as error:
                raise OSError(str(error)) from None
            return done.returncode, done.stdout + done.stderr

        to = self.order["server"]
        api = repository_api.Server(
            to["address"], to["http_port"], float(self.order["ready_timeout"]), to["key"], run if self.order["grpc"] else None
        )
        began, change = supervised.log_size(self.root), repository_api.Change(api, wanted)
        change.apply()
        self.did += [f"loaded {name}" for name in change.loaded] + [f"unloaded {name}" for name in change.unloaded]
        if change.why() and self._repeats(began):
            self._load(wanted)
        elif change.why():
            raise Unproven(change.why())

    def _repeats(self, began: int) -> bool:
        """Return True if loads are to be repeated: the supervisor ended a stuck one since the log had so many bytes."""
        stuck = supervised.stuck_loads(self.root, began)
        self.did += stuck
        self.rounds += bool(stuck)
        return bool(stuck) and self.rounds <= stuck_load.ROUNDS

    # The proof

    def _prove(self) -> None:
        """Until exactly what is wanted is served, by the releases that the server has in memory."""
        deadline = time.monotonic() + self.order["ready_timeout"]
        began = getattr(self, "said", supervised.log_size(self.root))
        while True:
            served = read_served(self.order["server"])
            plan = [] if served is None else server.diff_models(self.order["server"], served)
            if served is not None and not plan:
                break
            failed = log.reasons(supervised.log_since(self.root, began).splitlines(), sorted(self.models))
            ended = supervised.holder(self.root) is None or bool(supervised.ENDED.search(supervised.log_since(self.root, began)))
            refused = any("UNAVAILABLE" in str(entry["current"]) for entry in plan)
            if (ended or refused) and self._repeats(began):
                # A server that ended with its load is started again by its supervisor
                began, deadline = supervised.log_size(self.root), time.monotonic() + self.order["ready_timeout"]
                if not ended:
                    self._load_again([entry["name"] for entry in plan])
            elif ended or refused or time.monotonic() >= deadline:
                lines = [*(f"model {name}: {why}" for name, why in failed.items()), *map(sentence, plan)]
                words = "".join(f"\n  - {line}" for line in lines) or f" {supervised.last_words(self.root, began)}"
                raise Unproven(f"the server {'ended' if ended else 'does not serve what is wanted'}:{words}")
            time.sleep(LOOK)
        status, found = asked(self.order["server"], "GET", "/v2")
        told = version_of(found) if status == 200 else None
        if told != self.order["triton"]:
            raise Unproven(f"found Triton {told}, wanted {self.order['triton']}: choose the rbln_release of this image")

    def _load_again(self, names: List[str]) -> None:
        """Repeat the loads that failed because their processes were ended, in a server that goes on."""
        mode = self.order["server"]["mode"]
        if mode == "explicit":
            self._load(self.models)
        elif mode == "poll":
            releases.renew(self.root, self.who, names)
        else:
            self._start()

    def _ask(self) -> None:
        """The answers to the checks, by the client of the same Python."""
        document = dict(self.order["checks"]["document"])
        key = keys.headers(document.pop("key", None))
        found = check_client.prove(
            python_path(self.root), document, self.order["checks"]["program"], key, check_client.run_in_process
        )
        self.answered = found["checks"]
        if not found["proven"]:
            raise Unproven(str(found["msg"]).replace(f"{document['host']}: ", "", 1), self.answered)

    # The way back

    def _put_back(self, before: Optional[Mapping[str, Any]], why: str) -> str:
        """What served before serves again; in words, what that was."""
        if not before or not before.get("command"):
            return "there was none before; the next run goes on from here"
        try:
            moves = self._store("restored", {"why": why})["moves"] if store.read_transaction(self.root) else {}
            if supervised.running(self.root) != before or (moves and self.order["server"]["mode"] == "none"):
                supervised.stop(self.root)
                supervised.start(self.root, before, self.order["supervisor"]["archive"], python_path(self.root))
            linked = store.linked(self.root, self.models)
            self._wait(linked, bool(moves))
            self._store("proven", {"why": why, "keep": self.order["keep"]})
        except Exception as failure:
            return f"what served before could not be put back, repair that and run again: {failures.reason(failure, EXPECTED)}"
        return "the one before it serves again"

    def _wait(self, linked: Mapping[str, Any], moved: bool) -> None:
        deadline = time.monotonic() + self.order["ready_timeout"]
        loaded = not moved or self.order["server"]["mode"] != "explicit"
        began = supervised.log_size(self.root)
        while True:
            served = read_served(self.order["server"])
            if served is not None and not loaded:
                self._load(linked)
                loaded = True
            elif served is not None and all(repository_api.good(served.get(name, {}), model) for name, model in linked.items()):
                return
            elif served is not None and self._repeats(began):
                began = supervised.log_size(self.root)
                lacking = [name for name, model in linked.items() if not repository_api.good(served.get(name, {}), model)]
                self._load_again(lacking)
            if time.monotonic() >= deadline:
                raise ProcessError(f"it does not serve: {supervised.last_words(self.root)}")
            time.sleep(LOOK)
