"""The manifests: fields that KubeRay and Serve know, the versions of this project, commands that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from dgr2.config.fields import lookup
from dgr2.jobs.cli import app

# KubeRay 1.5: the fields of the three resources that a manifest of ours may use.
JOB = {
    "entrypoint",
    "entrypointNumCpus",
    "submissionMode",
    "backoffLimit",
    "submitterConfig",
    "activeDeadlineSeconds",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "rayClusterSpec",
}
SERVICE = {"serveConfigV2", "rayClusterConfig"}
CLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


@pytest.fixture
def job(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "cluster" / "kuberay" / "rayjob.yaml").read_text())


@pytest.fixture
def service(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "cluster" / "kuberay" / "rayservice.yaml").read_text())


def test_fields_are_known(job: dict[str, Any], service: dict[str, Any]) -> None:
    for manifest, kind, fields in ((job, "RayJob", JOB), (service, "RayService", SERVICE)):
        assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", kind)
        assert set(manifest["spec"]) == fields
    for cluster in (job["spec"]["rayClusterSpec"], service["spec"]["rayClusterConfig"]):
        assert set(cluster) == CLUSTER and cluster["authOptions"] == {"mode": "token"}
        assert set(cluster["headGroupSpec"]) == HEAD
        assert all(set(group) == WORKERS for group in cluster["workerGroupSpecs"])


def test_versions_and_images_agree(root: Path, job: dict[str, Any], service: dict[str, Any]) -> None:
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    for cluster in (job["spec"]["rayClusterSpec"], service["spec"]["rayClusterConfig"]):
        assert cluster["rayVersion"] == ray.__version__
        groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
        images = {c["image"] for g in groups for c in g["template"]["spec"]["containers"]}
        assert images == {f"dgr2:{version}"}
    dockerfile = (root / "cluster" / "Dockerfile").read_text()
    assert f"rayproject/ray:{ray.__version__}-py311" in dockerfile
    for folder in ("platform", "jobs", "actors", "cluster", "dashboards"):
        assert f" {folder} {folder}\n" in dockerfile


def test_a_job_is_tried_again_as_a_whole_and_never_submitted_twice(job: dict[str, Any]) -> None:
    spec = job["spec"]
    assert spec["submitterConfig"]["backoffLimit"] == 0 and spec["backoffLimit"] >= 1
    assert (
        spec["shutdownAfterJobFinishes"] and spec["ttlSecondsAfterFinished"] and spec["activeDeadlineSeconds"]
    )
    program, command, *words = shlex.split(spec["entrypoint"])
    assert program == "dgr2" and command in {c.name or c.callback.__name__ for c in app.registered_commands}
    keys = [word.partition("=")[0] for word in words if re.fullmatch(r"[a-z_.]+=.*", word)]
    for key in keys:
        lookup(key)


def test_the_service_is_what_serve_and_the_builder_take(service: dict[str, Any]) -> None:
    pytest.importorskip("dgr2.serving.deployment")
    from dgr2.serving.deployment import ServeArgs, build

    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    assert set(config) <= set(ServeDeploySchema.model_fields)  # Serve ignores what it does not know
    assert set(config["http_options"]) <= set(HTTPOptionsSchema.model_fields)
    (application,) = config["applications"]
    assert set(application) <= set(ServeApplicationSchema.model_fields)
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    build(ServeArgs(**application["args"]))
