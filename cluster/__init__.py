"""Getting jobs onto a cluster: staging, submission, doctor, KubeRay manifests, image."""
