"""The wheel holds every module, and the tree does not shadow Python's own ``platform``."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = {
    "platform/dgr2": "dgr2",
    "jobs": "dgr2/jobs",
    "actors": "dgr2/actors",
    "cluster": "dgr2/cluster",
    "dashboards": "dgr2/dashboards",
}


def test_wheel_holds_every_module_and_preset(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: setuptools ships what a stale build/ holds
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, source / name)
    for folder in ("platform", "jobs", "actors", "cluster", "dashboards"):
        shutil.copytree(root / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "-w", tmp_path, source], check=True, timeout=300)
    (wheel,) = tmp_path.glob("dgr2-*.whl")
    shipped = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("dgr2/")}
    expected = {
        f"{package}/{file.relative_to(source / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for pattern in ("*.py", "*.yaml", "*.json")
        for file in (source / folder).rglob(pattern)
    }
    assert shipped == expected


def test_platform_is_not_a_package(root: Path) -> None:
    assert not (root / "platform" / "__init__.py").exists()


def test_stdlib_platform_survives_from_the_root(root: Path) -> None:
    code = "import platform, uuid; print(platform.system())"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == platform.system(), done.stderr


@pytest.mark.ray
def test_stdlib_platform_survives_in_a_ray_worker(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.chdir(root)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote
        def look() -> tuple[str, str]:
            import platform

            import dgr2.jobs

            return platform.system(), dgr2.jobs.__name__

        assert ray.get(look.remote(), timeout=120) == (platform.system(), "dgr2.jobs")
    finally:
        ray.shutdown()
