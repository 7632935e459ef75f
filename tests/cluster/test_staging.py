"""What is sent to a cluster: every module and preset, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgr2.cluster import staging
from dgr2.cluster.staging import require_size, staged_tree
from dgr2.errors import UserError

FOLDERS = {"platform/dgr2": "dgr2", **{f: f"dgr2/{f}" for f in ("jobs", "actors", "cluster", "dashboards")}}


def names(tree: Path) -> set[str]:
    return {p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()}


def test_the_tree_holds_every_module_and_preset_and_no_more(spaced_checkout: Path, site: Path) -> None:
    modules = {
        f"{package}/{file.relative_to(spaced_checkout / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for file in (spaced_checkout / folder).rglob("*.py")
    }
    found = names(site)
    assert {n for n in found if n.endswith(".py")} == modules
    assert {"dgr2/config/presets/demo.yaml", "dgr2/config/presets/beauty-small.yaml"} <= found
    assert {n.split("/")[0].split("-")[0] for n in found} == {"dgr2"}  # dgr2/ and dgr2-VERSION.dist-info/
    assert not [n for n in found if "test" in n or "build/" in n or n.endswith((".pyc", "direct_url.json"))]
    assert not (spaced_checkout / "jobs" / "build").exists() and (spaced_checkout / "build" / "lib").is_dir()


def test_an_installed_package_gives_the_same_tree(site: Path) -> None:
    code = (
        "from dgr2.cluster.staging import checkout, staged_tree\n"
        "assert checkout() is None\n"
        "with staged_tree() as tree:\n"
        "    print(tree.digest)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == staging._digest(site), done.stderr


def test_a_tree_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dgr2").mkdir()
    (tmp_path / "dgr2" / "weights.bin").write_bytes(b"0" * 3000)
    (tmp_path / "dgr2" / "small.py").write_bytes(b"0" * 10)
    assert require_size(tmp_path) == 3010
    with pytest.raises(UserError, match=r"largest: dgr2/weights.bin"):
        require_size(tmp_path, limit=3009)


def test_a_checkout_that_pip_cannot_install_is_one_line(tmp_path: Path) -> None:
    for name in staging.FOLDERS:
        (tmp_path / name).mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / "pyproject.toml").write_text("[project\n", encoding="utf-8")
    with pytest.raises(UserError, match="pip could not install") as caught, staged_tree(tmp_path):
        pass
    assert "\n" not in str(caught.value)
