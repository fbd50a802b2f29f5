#!/usr/bin/python
"""Stands for the engine's modules, a registry, rsync and host_state on a host that is played: it writes where and as they do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys

from ansible.module_utils.basic import AnsibleModule

# The SDK has something of its own to say, before and after
SAID = """rebel: {"telemetry": "off"}
WARNING: no NPU

npufleet: {"versions": {"rebel-compiler": "0.6.2"}, "options": []}
rebel: bye
"""
STAGE = os.environ["NPUFLEET_STAGE"]


def read(name):
    with open(os.path.join(STAGE, name)) as source:
        return json.load(source)


def write(name, content):
    with open(os.path.join(STAGE, name), "w") as sink:
        json.dump(content, sink)


def inspected(ident):
    digests = [name for name, image in read("images.json").items() if "@" in name and image == ident]
    there = {"Id": ident, "Os": "linux", "Architecture": "amd64", "Config": {}, "RootFS": {"Layers": [ident]}}
    return {**there, "RepoDigests": [name.replace("sha256:", "sha257:") for name in digests] if here("lies") else digests}


def here(name):
    return os.path.exists(os.path.join(STAGE, name))


def image_info(given):
    found = read("images.json").get(given["name"])
    return {"images": [inspected(found)] if found else []}


def image_load(given):
    with open(given["path"]) as source:
        loaded = json.load(source)
    write("images.json", {**read("images.json"), **loaded})
    return {"image_names": sorted(loaded), "images": [{"Id": entry} for entry in loaded.values()]}


def image_tag(given):
    images = read("images.json")
    write("images.json", {**images, **dict.fromkeys(given["repository"], images[given["name"]])})
    return {}


def image_remove(given):
    # With the last tag of a repository go its digests
    repository = given["name"].rpartition(":")[0]
    images = {name: ident for name, ident in read("images.json").items() if name != given["name"]}
    if not any(name.startswith(repository + ":") for name in images):
        images = {name: ident for name, ident in images.items() if not name.startswith(repository + "@")}
    write("images.json", images)
    return {}


def registry():
    """What is in the registry; raises where it does not let this one in."""
    if here("gone"):
        raise OSError('500 Server Error for http+docker://localhost: Internal Server Error ("connection refused")')
    try:
        with open(os.path.join(os.environ["DOCKER_CONFIG"], "config.json")) as source:
            known = json.load(source) == read("login.json")
    except OSError:
        known = not read("login.json")
    if not known:
        raise OSError("no basic auth credentials")
    return read("registry.json")


def login(given):
    asked = [given["username"], given["password"]]
    if asked != read("login.json"):
        # Of an engine that tells whatever it was told
        raise OSError('500 Server Error for http+docker://localhost: Error ("401 Unauthorized: {}:{}")'.format(*asked))
    os.makedirs(os.path.dirname(given["config_path"]), exist_ok=True)
    with open(given["config_path"], "w") as sink:
        json.dump(asked, sink)
    return {"login_result": {}}


def image_push(given):
    ident = read("images.json")["{name}:{tag}".format(**given)]
    name = given["name"] + "@sha256:" + hashlib.sha256(ident.encode()).hexdigest()
    write("registry.json", {**registry(), name: ident})
    write("images.json", {**read("images.json"), name: ident})
    return {"image": inspected(ident)}


def image_pull(given):
    ident = registry()[given["name"]]
    write("images.json", {**read("images.json"), given["name"]: ident})
    return {"image": inspected(ident)}


def image_build(given):
    write("images.json", {**read("images.json"), given["name"]: "sha256:" + "e" * 64})
    return {"image": inspected("sha256:" + "e" * 64)}


def image_export(given):
    # Follows a link that lies there, as the real one does
    with open(given["path"], "w") as sink:
        json.dump({given["name"]: read("images.json")[given["name"]]}, sink)
    return {}


def container(given):
    if given["name"] == "npufleet-wheels":
        write("pip.json", [*read("pip.json"), given["command"]])
        places = dict(reversed(volume.split(":")[:2]) for volume in given["volumes"])
        for name, content in read("wheels.json").items():
            with open(os.path.join(places["/wheels"], name), "w") as sink:
                sink.write(content)
    return {"container": {"State": {"ExitCode": 0}, "Output": SAID}}


def synchronize(given):
    shutil.copyfile(given["src"], given["dest"])
    if here("tamper"):
        with open(given["dest"], "a") as sink:
            sink.write(" ")
    return {}


CALLS = {
    "docker_image_info": image_info,
    "docker_image_load": image_load,
    "docker_image": image_build,
    "docker_image_tag": image_tag,
    "docker_image_remove": image_remove,
    "docker_image_push": image_push,
    "docker_image_pull": image_pull,
    "docker_login": login,
    "docker_image_export": image_export,
    "docker_container": container,
    "synchronize": synchronize,
    "host_state": lambda given: {"proven": True} if given["prove"] else read("state.json"),
}


def main():
    name = re.search("|".join(sorted(CALLS, key=len, reverse=True)), os.path.basename(sys.argv[0]))[0]
    anything = {"type": "raw"}
    options = "name path force timeout image entrypoint command detach cleanup network_mode env volumes pull source force_source"
    options += (
        " build src dest archive compress delay_updates verify_host use_ssh_args ssh_connection_multiplexing times rsync_opts"
    )
    options += " mode concerns prove tag repository registry_url username config_path"
    module = AnsibleModule(argument_spec={"password": {"no_log": True}, **dict.fromkeys(options.split(), anything)})
    write("calls.json", [*read("calls.json"), name])
    try:
        module.exit_json(changed=True, **CALLS[name](module.params))
    except (KeyError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
