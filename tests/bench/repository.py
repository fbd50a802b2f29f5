"""The model repositories of bench-serving: `rbln` models as a host would get them, and `empty` and `naive` for comparison."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Sequence

import yaml
from ansible_collections.npufleet.triton.plugins.plugin_utils.models import manifest
from server import BUILD, RELEASES, ROOT, ensure_network
from standins import RELEASE_ROWS, card_of, sha256_of

SOURCES = ROOT / "tests/bench/models"
LAB = ROOT / "inventories/lab/group_vars/all.yml"
DEFAULTS = ROOT / "roles/model_repository/defaults/main.yml"


def variables(release: str, npus: int) -> Dict[str, Any]:
    """Return the variables for a manifest: the lab's release row of this Triton, a number of NPUs, and the role's defaults."""
    row = RELEASES[release]
    rows = yaml.safe_load(LAB.read_text())["npufleet_extra_releases"]
    host = {"npufleet_npus": npus, "npufleet_card": card_of(row), "npufleet_release_row": rows[row], "rbln_release": row}
    return {**yaml.safe_load(DEFAULTS.read_text()), **host}


def served(name: str, profile: str, release: str, npus: Sequence[int]) -> Mapping[str, bytes]:
    """Return the small files of a model of the backend `rbln` on these NPUs, as the manifest of a host renders them."""
    source = BUILD / "source" / release
    (source / name).mkdir(parents=True, exist_ok=True)
    (source / name / "config.pbtxt").write_text('backend: "rbln"\n')
    compiled = ensure_network(release)
    row = RELEASES[release]
    key = f"{card_of(row).removeprefix('RBLN-')}/{RELEASE_ROWS[row]['sdk_line']}"
    entry = {
        "name": name,
        "repository": str(source),
        "profile": profile,
        "npus": list(npus),
        "artefacts": {key: {"file": str(compiled), "sha256": sha256_of(compiled)}},
    }
    by_name, reasons = manifest.manifests(variables(release, max(npus) + 1), [entry])
    if reasons:
        raise SystemExit("; ".join(reasons))
    return by_name[entry["name"]]["contents"]


def make(directory: str, release: str, rbln: Mapping[str, Any], waits: Iterable[float] = (), others: Iterable[str] = ()) -> Path:
    """Create a repository below build/bench/repository, and return it.

    `rbln` is {model of the backend `rbln`: (profile, NPUs)}. `waits` has the milliseconds of `empty` models that wait. `others` are
    the names of models in tests/bench/models.
    """
    repository = BUILD / "repository" / directory
    shutil.rmtree(repository, ignore_errors=True)
    compiled = ensure_network(release)
    for name, (profile, npus) in rbln.items():
        (repository / name / "1").mkdir(parents=True)
        shutil.copy2(compiled.with_name("network.onnx"), repository / name / "1")
        for path, content in served(name, profile, release, npus).items():
            (repository / name / path).write_bytes(content)
    for name in others:
        shutil.copytree(SOURCES / name, repository / name)
    for wait_ms in waits:
        name = waiting(wait_ms)
        shutil.copytree(SOURCES / "empty", repository / name)
        config = (SOURCES / "empty/config.pbtxt").read_text().replace('name: "empty"', f'name: "{name}"')
        parameter = f'parameters {{key: "wait_ms" value {{string_value: "{wait_ms:g}"}}}}\n'
        (repository / name / "config.pbtxt").write_text(config + parameter)
    for model in {*rbln, "naive"} & {path.name for path in repository.iterdir()}:
        shutil.copy2(compiled, repository / model / "1" / "model.rbln")
    return repository


def waiting(wait_ms: float) -> str:
    """Return the name of the empty model that waits as long as an NPU would compute."""
    return f"empty-{wait_ms:g}ms"
