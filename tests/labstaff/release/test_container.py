"""The container's two files, against the schema of devcontainer.json and the course's needs."""

from __future__ import annotations

import json
import re

from labkit.labs.catalog import ROOT
from labstaff.grader.sandbox import POWERS

FOLDER = ROOT / ".devcontainer"
TEXT, TEXTS, NAMES = str, [str], {str: str}
SCHEMA = {
    **{"name": TEXT, "build": {"dockerfile": TEXT, "context": TEXT, "args": NAMES, "target": TEXT}, "remoteUser": TEXT},
    **{"hostRequirements": {"cpus": int, "memory": TEXT, "storage": TEXT}, "capAdd": TEXTS, "securityOpt": TEXTS},
    **{"containerEnv": NAMES, "remoteEnv": NAMES, "postCreateCommand": TEXT, "privileged": bool, "init": bool},
    "customizations": {"vscode": {"extensions": TEXTS, "settings": dict}},
}
"""Of the published schema (containers.dev, devContainer.base.schema.json), what is used here, and its neighbours."""
DOCKERS_OWN = {
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SETFCAP", "MKNOD"),
    *("NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "AUDIT_WRITE"),
}
"""What every container may do (Docker's documentation, “Runtime privilege and Linux capabilities”)."""


def breaches(value: object, schema: object, where: str = "") -> list[str]:
    """The places where `value` breaks `schema`."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: expected {schema.__name__}, found {value!r}"]
    if isinstance(schema, list):
        items = value if isinstance(value, list) else [None]
        return [breach for item in items for breach in breaches(item, schema[0], where)]
    if not isinstance(value, dict):
        return [f"{where}: expected an object, found {value!r}"]
    assert isinstance(schema, dict)
    found = []
    for key, inner in value.items():
        wanted = schema[str] if str in schema else schema.get(key)
        found += breaches(inner, wanted, f"{where}.{key}") if wanted is not None else [f"{where}.{key}: unknown"]
    return found


def settings() -> dict:
    return json.loads((FOLDER / "devcontainer.json").read_text(encoding="utf-8"))


def test_the_settings_follow_the_schema():
    assert breaches(settings(), SCHEMA) == []
    assert re.fullmatch(r"\d+[gmt]b", settings()["hostRequirements"]["memory"])
    assert re.fullmatch(r"\d+[gmt]b", settings()["hostRequirements"]["storage"])
    assert (FOLDER / settings()["build"]["dockerfile"]).is_file()


def test_what_is_no_setting_is_found():
    assert breaches({"build": {"dockerFile": "x"}, "capAdd": "ALL", "init": "yes"}, SCHEMA) == [
        ".build.dockerFile: unknown",
        ".capAdd: expected str, found None",
        ".init: expected bool, found 'yes'",
    ]


def test_the_sandbox_gets_the_powers_that_it_needs():
    """If the grader is root, as in the container, each submission runs as a separate user."""
    has = DOCKERS_OWN | set(settings()["capAdd"])
    assert {power.removeprefix("CAP_") for power in POWERS} <= has
    assert settings()["remoteUser"] == "root"
    assert set(settings()["securityOpt"]) == {f"{what}=unconfined" for what in ("seccomp", "apparmor", "systempaths")}


def test_the_environment_is_the_same_everywhere():
    environment = settings()["containerEnv"]["UV_PROJECT_ENVIRONMENT"]
    assert settings()["remoteEnv"]["PATH"].startswith(f"{environment}/bin:")
    python = settings()["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == f"{environment}/bin/python"


def test_the_image_has_what_the_ci_installs():
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    wanted = re.findall(r"wanted\+=\((\w+)\)", ci)
    assert wanted
    assert [name for name in (*wanted, "uv", "git") if not re.search(rf"\b{name}\b", dockerfile)] == []
