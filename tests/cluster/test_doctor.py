"""What a cluster's facts mean for a configuration."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from dgr2.cluster import doctor
from dgr2.cluster.doctor import Check, demands, judge, print_checks, shadowing
from dgr2.cluster.probe import MARK, ClusterFacts, NodeFacts, facts_from_log
from dgr2.config import Config

NODE = NodeFacts("10.0.0.1", "3.11.7", "2.60.0", "2.13.0", "/tmp/dgr2", True, "")
SECOND = dataclasses.replace(NODE, node="10.0.0.2")


def outcomes(nodes: tuple[NodeFacts, ...], free: float = 8.0, total: float = 8.0) -> dict[str, Check]:
    facts = ClusterFacts(nodes, {"CPU": total}, {"CPU": free})
    return {c.name: c for c in judge(facts, Config(), "/runs")}


def test_a_healthy_cluster() -> None:
    assert {c.outcome for c in outcomes((NODE, SECOND)).values()} == {"ok"}


@pytest.mark.parametrize(
    ("change", "name", "word"),
    [
        ({"python": "3.12.1"}, "Python", "3.12.1 on 10.0.0.2"),
        ({"ray": "2.59.0"}, "Ray", "2.59.0 on 10.0.0.2"),
        ({"torch": "none"}, "torch", "none on 10.0.0.2"),
        ({"stdlib_platform": False}, "platform on the nodes", "10.0.0.2"),
        ({"storage": "cannot be written: Read-only file system"}, "storage", "10.0.0.2 cannot be written"),
    ],
)
def test_one_node_that_differs(change: dict, name: str, word: str) -> None:
    checks = outcomes((NODE, dataclasses.replace(SECOND, **change)))
    assert checks[name].outcome == "failed" and word in checks[name].found
    assert [c.name for c in checks.values() if c.outcome != "ok"] == [name]


def test_resources_free_taken_and_missing() -> None:
    assert outcomes((NODE,), free=0.0)["training"].outcome == "warning"
    assert outcomes((NODE,), total=1.0)["training"].outcome == "failed"
    config = Config()
    config.ray.use_gpu = True
    assert demands(config)["training"] == {"CPU": 2.0, "GPU": 2.0}
    assert demands(config)["loops (opd, rl)"]["GPU"] == 2.0


def test_facts_come_back_from_a_log() -> None:
    facts = ClusterFacts((NODE, SECOND), {"CPU": 4.0}, {"CPU": 1.5})
    text = f"INFO setting up\n{MARK}{json.dumps(dataclasses.asdict(facts))}\nbye\n"
    assert facts_from_log(text) == facts
    assert facts_from_log("error: no node\n") is None


def test_a_package_called_platform_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shadowing().outcome == "ok"
    fake = tmp_path_factory.mktemp("checkout")
    (fake / "platform").mkdir()
    (fake / "platform" / "__init__.py").touch()
    monkeypatch.setattr(doctor, "checkout", lambda: fake)
    assert shadowing().outcome == "failed"


def test_the_table_shows_all_and_tells_whether_one_failed() -> None:
    out = io.StringIO()
    checks = [Check("Ray", "ok", "2.60.0"), Check("storage", "failed", "gone [x]")]
    assert not print_checks(checks, Console(file=out, width=100))
    assert print_checks(checks[:1], Console(file=io.StringIO()))
    assert "gone [x]" in out.getvalue()
