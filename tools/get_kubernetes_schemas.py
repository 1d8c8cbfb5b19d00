"""Renew the schemas of Kubernetes that tests/deploy checks manifests with: `python -m
tools.get_kubernetes_schemas`.

They are made from Kubernetes' own OpenAPI description, one for each kind. Of the wheel of
`kubernetes-validate`, which carries them for a version of Kubernetes, this takes those of the kinds
that we use and all that they refer to, without the descriptions. Needed only for a newer version.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

VENDOR = Path(__file__).resolve().parents[1] / "tests/deploy/vendor"
PACKAGE, VERSION = "kubernetes-validate", "1.37.0"
KINDS = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
)
_FILE = f"kubernetes_validate/kubernetes-json-schema/v{VERSION}-local-strict/_definitions.json"


def main() -> None:
    """Fetch the wheel, and write the schemas beside what they are and where they come from."""
    with TemporaryDirectory() as folder:
        command = ["download", "--no-deps", "--quiet", "--dest", folder, f"{PACKAGE}=={VERSION}"]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
        [wheel] = Path(folder).glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with zipfile.ZipFile(wheel) as archive:
            found = dict(reachable(archive))
    written = json.dumps({"$defs": found}, indent=1, sort_keys=True) + "\n"
    VENDOR.mkdir(exist_ok=True)
    (VENDOR / "kubernetes.json").write_text(written)
    facts = {
        "kubernetes": VERSION,
        "licence": "Apache-2.0",
        "package": f"{PACKAGE}=={VERSION}",
        "package_sha256": digest,
        "sha256": hashlib.sha256(written.encode()).hexdigest(),
    }
    (VENDOR / "vendor.json").write_text(json.dumps(facts, indent=2) + "\n")


def reachable(archive: zipfile.ZipFile) -> Iterator[tuple[str, Any]]:
    """The schemas of KINDS, and those that they refer to, by name."""
    every = json.loads(archive.read(_FILE))["$defs"]
    waiting, known = list(KINDS), set(KINDS)
    while waiting:
        name = waiting.pop()
        for node in nodes(every[name]):
            if isinstance(node.get("description"), str):
                del node["description"]
            target = node.get("$ref")
            if isinstance(target, str):
                named = target.rpartition("/")[2]
                node["$ref"] = f"#/$defs/{named}"
                waiting += {named} - known
                known.add(named)
        yield name, every[name]


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in list(schema.values()):
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


if __name__ == "__main__":
    main()
