#!/usr/bin/python
"""Stand-in for the modules of the engine, for a registry, rsync and host_state on a simulated host. It writes the same files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys

from ansible.module_utils.basic import AnsibleModule

# The output of a container. The SDK prints other lines before and after the line of this project.
OUTPUT = """rebel: {"telemetry": "off"}
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
    facts = {"Id": ident, "Os": "linux", "Architecture": "amd64", "Config": {}, "RootFS": {"Layers": [ident]}}
    return {**facts, "RepoDigests": [name.replace("sha256:", "sha257:") for name in digests] if here("lies") else digests}


def here(name):
    return os.path.exists(os.path.join(STAGE, name))


def image_info(options):
    found = read("images.json").get(options["name"])
    return {"images": [inspected(found)] if found else []}


def image_load(options):
    with open(options["path"]) as source:
        loaded = json.load(source)
    write("images.json", {**read("images.json"), **loaded})
    return {"image_names": sorted(loaded), "images": [{"Id": entry} for entry in loaded.values()]}


def image_tag(options):
    images = read("images.json")
    write("images.json", {**images, **dict.fromkeys(options["repository"], images[options["name"]])})
    return {}


def image_remove(options):
    # The removal of the last tag of a repository also removes its digests
    repository = options["name"].rpartition(":")[0]
    images = {name: ident for name, ident in read("images.json").items() if name != options["name"]}
    if not any(name.startswith(repository + ":") for name in images):
        images = {name: ident for name, ident in images.items() if not name.startswith(repository + "@")}
    write("images.json", images)
    return {}


def registry():
    """Return the content of the registry. Raises OSError without a valid login."""
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


def login(options):
    credentials = [options["username"], options["password"]]
    if credentials != read("login.json"):
        # Some engines repeat the login in the error
        raise OSError('500 Server Error for http+docker://localhost: Error ("401 Unauthorized: {}:{}")'.format(*credentials))
    os.makedirs(os.path.dirname(options["config_path"]), exist_ok=True)
    with open(options["config_path"], "w") as sink:
        json.dump(credentials, sink)
    return {"login_result": {}}


def image_push(options):
    ident = read("images.json")["{name}:{tag}".format(**options)]
    name = options["name"] + "@sha256:" + hashlib.sha256(ident.encode()).hexdigest()
    write("registry.json", {**registry(), name: ident})
    write("images.json", {**read("images.json"), name: ident})
    return {"image": inspected(ident)}


def image_pull(options):
    ident = registry()[options["name"]]
    write("images.json", {**read("images.json"), options["name"]: ident})
    return {"image": inspected(ident)}


def image_build(options):
    write("images.json", {**read("images.json"), options["name"]: "sha256:" + "e" * 64})
    return {"image": inspected("sha256:" + "e" * 64)}


def image_export(options):
    # Like the real module, follow a link at this path
    with open(options["path"], "w") as sink:
        json.dump({options["name"]: read("images.json")[options["name"]]}, sink)
    return {}


def container(options):
    if options["name"] == "npufleet-wheels":
        write("pip.json", [*read("pip.json"), options["command"]])
        places = dict(reversed(volume.split(":")[:2]) for volume in options["volumes"])
        for name, content in read("wheels.json").items():
            with open(os.path.join(places["/wheels"], name), "w") as sink:
                sink.write(content)
    return {"container": {"State": {"ExitCode": 0}, "Output": OUTPUT}}


def synchronize(options):
    shutil.copyfile(options["src"], options["dest"])
    if here("tamper"):
        with open(options["dest"], "a") as sink:
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
    "host_state": lambda options: {"proven": True} if options["prove"] else read("state.json"),
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
