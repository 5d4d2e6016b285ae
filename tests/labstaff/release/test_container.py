"""The container's two files, against the course's needs."""

from __future__ import annotations

import json
import re

from labkit.labs.catalog import ROOT
from labstaff.grader.sandbox import CAPABILITIES

FOLDER = ROOT / ".devcontainer"
DOCKERS_OWN = {
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SETFCAP", "MKNOD"),
    *("NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "AUDIT_WRITE"),
}
"""What every container may do (Docker's documentation, “Runtime privilege and Linux capabilities”)."""


def settings() -> dict:
    return json.loads((FOLDER / "devcontainer.json").read_text(encoding="utf-8"))


def test_the_sandbox_gets_the_powers_that_it_needs():
    """If the grader is root, as in the container, each submission runs as a separate user."""
    has = DOCKERS_OWN | set(settings()["capAdd"])
    assert {power.removeprefix("CAP_") for power in CAPABILITIES} <= has
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
