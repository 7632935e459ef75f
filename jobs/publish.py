"""Publish the newest good student of a run: everything that serving needs, and a manifest last."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from dgr2.jobs.student import best_student
from dgr2.serving.location import description, published_files
from dgr2.storage import RunFolder
from dgr2.storage.objects import ObjectStore, StorageUri
from dgr2.telemetry import Progress


def publish(run: RunFolder, address: str, endpoint_url: str | None, console: Console) -> None:
    """Upload the student to ``s3://bucket/prefix`` once it has answered a request.

    Raises:
        DGR2Error: no good student; bucket or credentials missing; the service fails for good.
    """
    uri = StorageUri.parse(address)
    store = ObjectStore(endpoint_url)
    student = best_student(run, run.config().serve.max_history)
    files = published_files(run, student.name)
    about = description(run, student.name, student.version)
    with Progress(console) as progress, progress.task("publish", total=len(files)) as task:
        manifest = store.upload(files, uri, about, lambda done: task.advance(done))
    size = sum(entry.size for entry in manifest.files.values()) / 1e6
    console.print(
        Text(f"'{student.name}' {student.version}: {len(files)} files, {size:.1f} MB in {uri}"),
        soft_wrap=True,
    )
    console.print(Text(f"dgr2 serve --model {str(uri)!r}"), soft_wrap=True)
