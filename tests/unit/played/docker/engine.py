#!/usr/bin/python
"""Stands for the engine's modules, rsync and host_state on a host that is played: it writes where and as they do."""

from __future__ import annotations

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
    return {"Id": ident, "Os": "linux", "Architecture": "amd64", "Config": {}, "RootFS": {"Layers": [ident]}}


def image_info(given):
    found = read("images.json").get(given["name"])
    return {"images": [inspected(found)] if found else []}


def image_load(given):
    with open(given["path"]) as source:
        loaded = json.load(source)
    write("images.json", {**read("images.json"), **loaded})
    return {"image_names": sorted(loaded), "images": [{"Id": one} for one in loaded.values()]}


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
        places = dict(reversed(one.split(":")[:2]) for one in given["volumes"])
        for name, content in read("wheels.json").items():
            with open(os.path.join(places["/wheels"], name), "w") as sink:
                sink.write(content)
    return {"container": {"State": {"ExitCode": 0}, "Output": SAID}}


def synchronize(given):
    shutil.copyfile(given["src"], given["dest"])
    if os.path.exists(os.path.join(STAGE, "tamper")):
        with open(given["dest"], "a") as sink:
            sink.write(" ")
    return {}


CALLS = {
    "docker_image_info": image_info,
    "docker_image_load": image_load,
    "docker_image": image_build,
    "docker_image_export": image_export,
    "docker_container": container,
    "synchronize": synchronize,
    "host_state": lambda _given: {},
}


def main():
    name = re.search("|".join(sorted(CALLS, key=len, reverse=True)), os.path.basename(sys.argv[0]))[0]
    anything = {"type": "raw"}
    options = "name path force timeout image entrypoint command detach cleanup network_mode env volumes pull source force_source"
    options += (
        " build src dest archive compress delay_updates verify_host use_ssh_args ssh_connection_multiplexing times rsync_opts"
    )
    options += " mode concerns prove"
    module = AnsibleModule(argument_spec=dict.fromkeys(options.split(), anything))
    module.exit_json(changed=True, **CALLS[name](module.params))


if __name__ == "__main__":
    main()
