"""The manifests of Kubernetes are what its schemas allow, agree with each other, with the image and
with the program, and give no right too many.

The schemas are Kubernetes' own (tests/deploy/vendor, `tools/get_kubernetes_schemas.py`). Each rule
lists its offenders, and is tried on the files with one thing broken. No cluster is asked: what a
pod does when it ends is in tests/guarantees/test_drained.py and test_drained_agents.py.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from blackboard.cli.main import app
from blackboard.client import contexts
from blackboard.limits import AGENT_GRACE_MS, DEFAULT
from tests.deploy.plain_image import IMAGE
from tests.deploy.test_image import FROM_FILES, KNOWN
from tests.source_tree import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VENDOR = Path(__file__).with_name("vendor")
SCHEMAS = json.loads((VENDOR / "kubernetes.json").read_text(encoding="utf-8"))
CLIENT = {contexts.URL_VARIABLE, contexts.TOKEN_VARIABLE, contexts.CA_VARIABLE}
_SECRET = re.compile(
    r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|SIGNING_KEY|MASTER_KEY|ENGINE|ARCHIVE|TLS_KEY"
)
Document = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The files of one folder, by name."""

    texts: dict[str, str]

    @cached_property
    def documents(self) -> dict[str, Document]:
        """What is in each file."""
        return {name: yaml.safe_load(text) for name, text in self.texts.items()}

    def of(self, *kinds: str) -> list[Document]:
        """The documents of these kinds."""
        return [each for each in self.documents.values() if each["kind"] in kinds]

    @property
    def workload(self) -> Document:
        """What runs pods."""
        [found] = self.of("Deployment", "StatefulSet")
        return found

    @property
    def pod(self) -> Document:
        """What each pod is."""
        found: Document = self.workload["spec"]["template"]["spec"]
        return found

    @property
    def container(self) -> Document:
        """What runs in it."""
        [found] = self.pod["containers"]
        return dict(found)

    @property
    def environment(self) -> dict[str, Any]:
        """Its variables, None for those that come from a secret."""
        return {each["name"]: each.get("value") for each in self.container["env"]}

    @property
    def is_ours(self) -> bool:
        """Whether it runs our image."""
        return bool(self.container["image"] == "blackboard")


def manifests(folder: str) -> Manifests:
    """Those of a folder as they are."""
    paths = sorted((FOLDER / folder).glob("*.yaml"))
    return Manifests({path.name: path.read_text(encoding="utf-8") for path in paths})


REDIS, EMBEDDED, AGENTS = "redis", "embedded", "agents"
FOLDERS = [REDIS, EMBEDDED, AGENTS]


# --- by the schemas -------------------------------------------------------------------------------


def schema_of(document: Document) -> str:
    """The name of the schema for a document: Kubernetes says it in the schema itself."""
    group, _, version = document["apiVersion"].rpartition("/")
    wanted = {"group": group, "kind": document["kind"], "version": version}
    [name] = [
        name
        for name, schema in SCHEMAS["$defs"].items()
        if wanted in schema.get("x-kubernetes-group-version-kind", ())
    ]
    return str(name)


def refused(text: str, folder: Path) -> str:
    """What the schema of its kind says against a manifest."""
    schema, file = folder / "schema.json", folder / "manifest.yaml"
    name = schema_of(yaml.safe_load(text))
    schema.write_text(json.dumps({"$ref": f"#/$defs/{name}", **SCHEMAS}))
    file.write_text(text)
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--schemafile", str(schema), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


CHECKED = [
    (folder, name)
    for folder in FOLDERS
    for name, document in manifests(folder).documents.items()
    if document["kind"] != "Kustomization"
]


@pytest.mark.parametrize(("folder", "name"), CHECKED)
def test_kubernetes_would_take_it(folder: str, name: str, tmp_path: Path) -> None:
    """No field that it does not have, none of another type, none missing."""
    assert refused(manifests(folder).texts[name], tmp_path) == ""


@pytest.mark.parametrize(
    ("folder", "name", "good", "bad", "said"),
    [
        (REDIS, "deployment.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"),
        (REDIS, "deployment.yaml", "replicas: 3", 'replicas: "3"', "integer"),
        (REDIS, "deployment.yaml", "drop: [ALL]", "drop: ALL", "array"),
        (REDIS, "deployment.yaml", "seconds: 5", "second: 5", "seconds"),
        (REDIS, "service.yaml", "port: 7420", "ports: 7420", "ports"),
        (REDIS, "disruption.yaml", "maxUnavailable: 1", "maxUnavailable: [1]", "maxUnavailable"),
        (EMBEDDED, "statefulset.yaml", "mountPath:", "path:", "mountPath"),
        (AGENTS, "deployment.yaml", "secretKeyRef: {name", "secretKeyRef: {names", "names"),
    ],
)
def test_the_schemas_notice_what_is_broken(
    folder: str, name: str, good: str, bad: str, said: str, tmp_path: Path
) -> None:
    """A misspelt field, a wrong type, a field that is missing."""
    text = manifests(folder).texts[name]
    assert good in text
    assert said in refused(text.replace(good, bad), tmp_path)


def test_the_schemas_are_those_that_were_fetched() -> None:
    """With their digest and licence."""
    facts = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))
    written = (VENDOR / "kubernetes.json").read_bytes()
    assert hashlib.sha256(written).hexdigest() == facts["sha256"]
    assert facts["licence"] == "Apache-2.0"


# --- by rules of ours -----------------------------------------------------------------------------


def lost_selectors(files: Manifests) -> list[str]:
    """Selectors that do not select the pods."""
    labels = files.workload["spec"]["template"]["metadata"]["labels"].items()
    spread = [each["labelSelector"] for each in files.pod.get("topologySpreadConstraints", ())]
    selectors = [
        *(each["spec"]["selector"]["matchLabels"] for each in files.of("PodDisruptionBudget")),
        *(each["spec"]["selector"] for each in files.of("Service")),
        *(each["matchLabels"] for each in spread),
        files.workload["spec"]["selector"]["matchLabels"],
    ]
    return [str(each) for each in selectors if not each or not each.items() <= labels]


def probes(files: Manifests) -> dict[str, Document]:
    """The requests of the probes, by name."""
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    return {name: files.container[name]["httpGet"] for name in names if name in files.container}


def lost_ports(files: Manifests) -> list[str]:
    """Ports that nothing has, and the port of the image if it is not among them."""
    has = {each["name"]: each["containerPort"] for each in files.container.get("ports", ())}
    named = [each["port"] for each in probes(files).values()]
    for service in files.of("Service"):
        named += [each["targetPort"] for each in service["spec"]["ports"]]
    lost = [str(name) for name in named if name not in has]
    listens = {int(IMAGE.environment["BLACKBOARD_PORT"])} if files.is_ours else set()
    return lost + [str(port) for port in listens ^ set(has.values())]


def wrong_probes(files: Manifests) -> list[str]:
    """A probe that is missing, that asks something else, or in the clear where there is TLS."""
    if not files.is_ours:
        return []
    asks = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    scheme = "HTTPS" if "BLACKBOARD_TLS_CERT" in files.environment else "HTTP"
    found = probes(files)
    return [
        name
        for name, path in asks.items()
        if name not in found or (found[name]["path"], found[name]["scheme"]) != (path, scheme)
    ]


def unknown_words(files: Manifests) -> list[str]:
    """Commands, options and variables that the program does not have."""
    known = KNOWN | FROM_FILES | {"AWS_REGION", "AWS_ENDPOINT_URL"} if files.is_ours else CLIENT
    unknown = [name for name in files.environment if name not in known]
    if not files.is_ours:
        return unknown
    verb, *options = files.container["args"]
    command = typer.main.get_group(app).commands.get(verb)
    if command is None:
        return [*unknown, verb]
    has = {name for option in command.params for name in option.opts}
    return unknown + [each for each in options if each.startswith("-") and each not in has]


def written_secrets(files: Manifests) -> list[str]:
    """Variables that hold a secret and are written here, and not the path of a file."""
    return [
        name
        for name, value in files.environment.items()
        if _SECRET.search(name) and value is not None and not value.startswith("/run/")
    ]


def missing_files(files: Manifests) -> list[str]:
    """Paths that are named, and that no volume brings; volumes that are not mounted, or read by
    others than the pod's group."""
    volumes = {each["name"]: each for each in files.pod["volumes"]}
    claims = files.workload["spec"].get("volumeClaimTemplates", ())
    volumes |= {each["metadata"]["name"]: each for each in claims}
    mounts = {each["mountPath"]: each["name"] for each in files.container["volumeMounts"]}
    lost = sorted(set(volumes) ^ set(mounts.values()))
    for name, value in files.environment.items():
        if value is None or not value.startswith("/"):
            continue
        place = next((path for path in mounts if value.startswith(f"{path}/")), None)
        items = (
            None if place is None else volumes.get(mounts[place], {}).get("secret", {}).get("items")
        )
        paths = None if items is None else [f"{place}/{item['path']}" for item in items]
        if place is None or (paths is not None and value not in paths):
            lost.append(name)
    secrets = [each["secret"] for each in files.pod["volumes"] if "secret" in each]
    return lost + [each["secretName"] for each in secrets if each.get("defaultMode") != 0o440]


def loose_rights(files: Manifests) -> list[str]:
    """What gives a pod more rights than it needs."""
    user = int(IMAGE.user.partition(":")[0])
    pod, container = files.pod["securityContext"], files.container["securityContext"]
    wanted: list[tuple[str, object, object]] = [
        ("runAsNonRoot", pod.get("runAsNonRoot"), True),
        ("runAsUser", pod.get("runAsUser"), user),
        ("runAsGroup", pod.get("runAsGroup"), user),
        ("fsGroup", pod.get("fsGroup"), user),
        ("seccompProfile", pod.get("seccompProfile"), {"type": "RuntimeDefault"}),
        ("allowPrivilegeEscalation", container.get("allowPrivilegeEscalation"), False),
        ("readOnlyRootFilesystem", container.get("readOnlyRootFilesystem"), True),
        ("capabilities", container.get("capabilities"), {"drop": ["ALL"]}),
        ("automountServiceAccountToken", files.pod.get("automountServiceAccountToken"), False),
        # A Service sets NAME_PORT in each pod: of ours, a setting.
        ("enableServiceLinks", files.pod.get("enableServiceLinks"), False),
    ]
    return [name for name, found, right in wanted if found != right]


def unbounded(files: Manifests) -> list[str]:
    """What a pod asks for that is not said: then it may be put where there is no room for it."""
    resources = files.container["resources"]
    asked = [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")]
    return [f"{kind}.{name}" for kind, name in asked if name not in resources.get(kind, {})]


def hasty_ends(files: Manifests) -> list[str]:
    """A grace period that ends before the pod does."""
    grace_s = files.pod.get("terminationGracePeriodSeconds", 30)
    if not files.is_ours:
        longest_ms = AGENT_GRACE_MS + DEFAULT.client.finish_timeout_ms
        return [] if grace_s * 1000 > longest_ms else [str(grace_s)]
    before = files.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
    delay_ms = int(files.environment.get("BLACKBOARD_DRAIN_DELAY_MS", "0"))
    service = DEFAULT.service
    longest_ms = before.get("seconds", 0) * 1000 + delay_ms
    longest_ms += service.drain_timeout_ms + service.close_timeout_ms
    several = files.workload["spec"]["replicas"] > 1
    return [
        *([] if grace_s * 1000 > longest_ms else [str(grace_s)]),
        # With others to go to, connections are sent elsewhere before SIGTERM.
        *(["preStop"] if several and not before.get("seconds") else []),
    ]


def wrong_numbers(files: Manifests) -> list[str]:
    """Several where one alone can have the engine; a budget that lets no node be emptied."""
    replicas, environment = files.workload["spec"]["replicas"], files.environment
    is_embedded = files.is_ours and not {"BLACKBOARD_ENGINE", "BLACKBOARD_ENGINE_FILE"} & {
        *environment
    }
    found = [f"{replicas} embedded"] if is_embedded and replicas != 1 else []
    for budget in files.of("PodDisruptionBudget"):
        spared = budget["spec"].get(
            "maxUnavailable", replicas - budget["spec"].get("minAvailable", 0)
        )
        found += [] if 0 < spared < replicas else [f"budget {spared} of {replicas}"]
    return found


def other_names(files: Manifests) -> list[str]:
    """Files and images that the kustomization names and that are not there, or the other way."""
    [whole] = files.of("Kustomization")
    present = set(files.texts) - {"kustomization.yaml"}
    images = {each["name"] for each in whole["images"]}
    return sorted(set(whole["resources"]) ^ present | images ^ {files.container["image"]})


Rule = Callable[[Manifests], list[str]]
LABEL = "app.kubernetes.io/name: blackboard"
BROKEN: list[tuple[Rule, str, str, str, str]] = [
    (lost_selectors, REDIS, "service.yaml", f"selector: {{{LABEL}}}", "selector: {app: board}"),
    (lost_selectors, REDIS, "disruption.yaml", LABEL, "app.kubernetes.io/name: board"),
    (lost_selectors, EMBEDDED, "service.yaml", f"selector: {{{LABEL}}}", "selector: {}"),
    (lost_ports, REDIS, "service.yaml", "targetPort: wss", "targetPort: https"),
    (lost_ports, REDIS, "deployment.yaml", "/readyz, port: wss", "/readyz, port: ws"),
    (lost_ports, EMBEDDED, "statefulset.yaml", "containerPort: 7420", "containerPort: 7421"),
    (wrong_probes, REDIS, "deployment.yaml", "/readyz", "/healthz"),
    (wrong_probes, REDIS, "deployment.yaml", "startupProbe", "firstProbe"),
    (wrong_probes, EMBEDDED, "statefulset.yaml", "scheme: HTTPS", "scheme: HTTP"),
    (unknown_words, REDIS, "deployment.yaml", "[serve,", "[server,"),
    (unknown_words, REDIS, "deployment.yaml", "--log-format", "--log-fromat"),
    (unknown_words, EMBEDDED, "statefulset.yaml", "BLACKBOARD_DATA", "BLACKBOARD_DIRECTORY"),
    (unknown_words, AGENTS, "deployment.yaml", "BLACKBOARD_CA", "BLACKBOARD_CERT"),
    (
        written_secrets,
        REDIS,
        "deployment.yaml",
        "BLACKBOARD_SECRET_FILE, value: /run/keys/secret",
        "BLACKBOARD_SECRET, value: 0123456789abcdef",
    ),
    (
        written_secrets,
        REDIS,
        "deployment.yaml",
        "BLACKBOARD_ENGINE_FILE, value: /run/keys/engine",
        'BLACKBOARD_ENGINE, value: "redis://:password@redis:6379"',
    ),
    (missing_files, REDIS, "deployment.yaml", "/run/keys/engine", "/run/secrets/engine"),
    (missing_files, REDIS, "deployment.yaml", "defaultMode: 288", "defaultMode: 420"),
    (missing_files, EMBEDDED, "statefulset.yaml", "/run/keys/secret", "/run/keys/secrets"),
    (missing_files, EMBEDDED, "statefulset.yaml", "        name: data\n", "        name: dat\n"),
    (loose_rights, REDIS, "deployment.yaml", "runAsUser: 65532", "runAsUser: 0"),
    (loose_rights, REDIS, "deployment.yaml", "enableServiceLinks: false", "hostname: a"),
    (loose_rights, EMBEDDED, "statefulset.yaml", "drop: [ALL]", "add: [SYS_ADMIN]"),
    (loose_rights, AGENTS, "deployment.yaml", "readOnlyRootFilesystem: true", "privileged: true"),
    (unbounded, EMBEDDED, "statefulset.yaml", "limits: {memory: 2Gi}", "limits: {}"),
    (hasty_ends, REDIS, "deployment.yaml", "Seconds: 45", "Seconds: 20"),
    (hasty_ends, REDIS, "deployment.yaml", "seconds: 5}", "seconds: 0}"),
    (hasty_ends, EMBEDDED, "statefulset.yaml", "Seconds: 45", "Seconds: 10"),
    (hasty_ends, AGENTS, "deployment.yaml", "Seconds: 30", "Seconds: 10"),
    (wrong_numbers, EMBEDDED, "statefulset.yaml", "replicas: 1", "replicas: 2"),
    (wrong_numbers, REDIS, "disruption.yaml", "maxUnavailable: 1", "minAvailable: 3"),
    (other_names, REDIS, "kustomization.yaml", "disruption.yaml", "budget.yaml"),
    (other_names, AGENTS, "kustomization.yaml", "name: my-team", "name: team"),
]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, *_ in BROKEN))
def test_the_manifests_keep_the_rule(rule: Rule, folder: str) -> None:
    """No offender is in them."""
    assert rule(manifests(folder)) == []


@pytest.mark.parametrize(("rule", "folder", "name", "good", "bad"), BROKEN)
def test_each_rule_notices_what_is_broken(
    rule: Rule, folder: str, name: str, good: str, bad: str
) -> None:
    """One change of one file, and it has offenders."""
    texts = manifests(folder).texts
    assert good in texts[name]
    assert rule(Manifests({**texts, name: texts[name].replace(good, bad)})) != []


def test_the_page_names_what_the_manifests_expect() -> None:
    """Each secret and each key in it is in the commands of docs/howto/kubernetes.md."""
    page = (ROOT / "docs/howto/kubernetes.md").read_text(encoding="utf-8")
    for name in expected():
        assert name in page, name


def expected() -> Iterator[str]:
    """Secrets that somebody has to make, with their keys."""
    for folder in FOLDERS:
        files = manifests(folder)
        for volume in files.pod["volumes"]:
            if "secret" in volume:
                yield volume["secret"]["secretName"]
        for value in files.environment.values():
            if value is not None and value.startswith("/run/keys/"):
                yield f"--from-file={value.removeprefix('/run/keys/')}="
