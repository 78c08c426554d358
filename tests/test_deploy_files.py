"""What lies in deploy/: there is no container engine here, so files are held against their schemas.

The models below are the parts of the Compose specification and of Kubernetes that the files use;
a field that they do not know is an error. The commands in them are run by the end-to-end test.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from jsonschema import Draft202012Validator
from prefect.events.schemas.automations import AutomationCore
from prefect.flows import load_flow_from_entrypoint
from pydantic import ConfigDict, create_model
from referencing import Registry, Resource

from tests.support.compose import load_compose

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env")
SECRETS = {
    name: f"the-{name}"
    for name in ("PREFECT_USER_PASSWORD", "POSTGRES_PASSWORD", "STORE_USER", "STORE_PASSWORD")
}


def strict(**fields: Any) -> Any:
    """Make a model that refuses unknown fields; a pair is a type and a default."""
    pairs = {
        name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()
    }
    return create_model("Part", __config__=ConfigDict(extra="forbid"), **pairs)


TEXTS = dict[str, str]
CONDITIONS = Literal["service_started", "service_healthy", "service_completed_successfully"]
SERVICE = strict(
    image=str,
    build=(strict(context=str, dockerfile=str) | None, None),
    restart=(Literal["no", "unless-stopped"], "no"),
    entrypoint=(list[str] | None, None),
    command=(list[str] | None, None),
    environment=(TEXTS, {}),
    secrets=(list[str], []),
    ports=(list[str], []),
    volumes=(list[str], []),
    depends_on=(dict[str, strict(condition=CONDITIONS)], {}),
    healthcheck=(
        strict(test=list[str], interval=str, start_period=(str | None, None)) | None,
        None,
    ),
    deploy=(strict(replicas=int) | None, None),
)
COMPOSE = strict(
    name=str,
    services=dict[str, SERVICE],
    secrets=dict[str, strict(file=str)],
    volumes=dict[str, None],
)


def read_compose() -> Any:
    told = load_compose(SECRETS)
    return COMPOSE(**{name: value for name, value in told.items() if name[:2] != "x-"})


def test_compose_is_whole() -> None:
    told = read_compose()
    names = set(told.services)
    for name, service in told.services.items():
        assert set(service.depends_on) <= names
        assert set(service.secrets) <= set(told.secrets), name
        assert {volume.partition(":")[0] for volume in service.volumes} <= set(told.volumes)
        for other, how in service.depends_on.items():
            if how.condition == "service_healthy":
                assert told.services[other].healthcheck, other
        if service.restart == "unless-stopped":
            assert service.healthcheck, f"{name} runs for long"
        # Only this machine sees the ports.
        assert all(port.startswith("127.0.0.1:") for port in service.ports)
    built = {service.image for service in told.services.values() if service.build}
    assert built == {"latentbits"}


def test_containers_share_compiled_functions() -> None:
    folder = "/home/latentbits/.cache/latentbits"
    services = read_compose().services
    sharing = {name for name in services if f"compiled:{folder}" in services[name].volumes}
    assert sharing == {"dask-worker", "worker"}
    # So that the volume belongs to the user of the image.
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(rf"^USER latentbits\n(.*\n)*RUN mkdir -p {folder}$", image, re.MULTILINE)


def test_web_pages_of_dask_stay_on_loopback() -> None:
    """Without dashboard, Dask still serves pages on every interface, without TLS."""
    commands = [" ".join(service.command or []) for service in read_compose().services.values()]
    page = (DEPLOY.parent / ".docs" / "tasks" / "clusters.md").read_text(encoding="utf-8")
    commands += re.findall(r"^    (dask .*)", page, re.MULTILINE)
    dask = [command for command in commands if command.startswith("dask ")]
    assert len(dask) == 4
    assert all(re.search("--dashboard-address[ =]127.0.0.1:0 ", command) for command in dask)


def test_what_compose_names_is_there() -> None:
    told = read_compose()
    build = told.services["server"].build
    assert build is not None
    assert (DEPLOY / build.context / build.dockerfile).is_file()
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\w+)=", example, re.M)) == set(SECRETS)
    certificates = {secret.file for secret in told.secrets.values()}
    assert certificates == {f"certificates/{name}.pem" for name in ("ca", "node", "node-key")}


PORT = strict(name=str, containerPort=int)
PROBE = strict(
    httpGet=strict(path=str, port=str),
    initialDelaySeconds=(int, 0),
    periodSeconds=(int, 10),
    failureThreshold=(int, 3),
)
CONTAINER = strict(
    name=str,
    image=Literal["latentbits"],
    args=list[str],
    env=(list[strict(name=str, value=str)], []),
    envFrom=(list[strict(secretRef=strict(name=str))], []),
    ports=(list[PORT], []),
    readinessProbe=(PROBE | None, None),
    livenessProbe=(PROBE | None, None),
    resources=(strict(requests=TEXTS, limits=TEXTS) | None, None),
    securityContext=strict(
        allowPrivilegeEscalation=Literal[False], runAsNonRoot=Literal[True], runAsUser=int
    ),
    volumeMounts=(list[strict(name=str, mountPath=str, readOnly=(bool, False))], []),
)
VOLUME = strict(
    name=str,
    secret=(strict(secretName=str) | None, None),
    persistentVolumeClaim=(strict(claimName=str) | None, None),
)
POD = strict(
    securityContext=(strict(fsGroup=int) | None, None),
    containers=list[CONTAINER],
    volumes=(list[VOLUME], []),
    terminationGracePeriodSeconds=(int, 30),
    restartPolicy=(Literal["Always", "Never"], "Always"),
)
LABELS = strict(labels=(TEXTS, {}))
TEMPLATE = strict(metadata=(LABELS, LABELS()), spec=POD)
SERVICE_PORT = strict(name=str, protocol=Literal["TCP"], port=int, targetPort=str)
SCHEDULER = strict(
    spec=POD,
    service=strict(type=Literal["ClusterIP"], selector=TEXTS, ports=list[SERVICE_PORT]),
)
SELECTOR = strict(matchLabels=TEXTS)
ALLOWED = strict(
    ports=list[strict(protocol=Literal["TCP"], port=int)],
    **{"from": (list[strict(namespaceSelector=SELECTOR)] | None, None)},
)


def describe_kind(version: str, **fields: Any) -> Any:
    metadata = strict(name=str, labels=(TEXTS, {}))
    return strict(apiVersion=Literal[version], kind=str, metadata=metadata, **fields)


DASK = "kubernetes.dask.org/v1"
KINDS = {
    "DaskCluster": describe_kind(
        DASK, spec=strict(scheduler=SCHEDULER, worker=strict(replicas=int, spec=POD))
    ),
    "DaskAutoscaler": describe_kind(DASK, spec=strict(cluster=str, minimum=int, maximum=int)),
    "Deployment": describe_kind(
        "apps/v1",
        spec=strict(
            replicas=int,
            strategy=strict(type=Literal["Recreate"]),
            selector=SELECTOR,
            template=TEMPLATE,
        ),
    ),
    "Job": describe_kind(
        "batch/v1", spec=strict(backoffLimit=int, ttlSecondsAfterFinished=int, template=TEMPLATE)
    ),
    "Secret": describe_kind("v1", type=Literal["Opaque"], stringData=TEXTS),
    "NetworkPolicy": describe_kind(
        "networking.k8s.io/v1",
        spec=strict(
            podSelector=SELECTOR, policyTypes=list[Literal["Ingress"]], ingress=list[ALLOWED]
        ),
    ),
    "PersistentVolumeClaim": describe_kind(
        "v1",
        spec=strict(
            accessModes=list[Literal["ReadWriteMany"]],
            resources=strict(requests=strict(storage=str)),
        ),
    ),
}


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """All manifests by kind and name."""
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.glob("kubernetes/*.yaml")]
    told = [one for text in texts for one in yaml.safe_load_all(text)]
    return {(one["kind"], one["metadata"]["name"]): KINDS[one["kind"]](**one) for one in told}


@pytest.mark.matrix
def test_manifests_follow_the_published_schemas() -> None:
    """Schemas of Kubernetes and of the Dask operator, which are in packages of these names."""
    kubernetes = find_package("kubernetes_validate") / "kubernetes-json-schema"
    operator = find_package("dask_kubernetes") / "operator/deployment/helm"
    newest = max(kubernetes.glob("v*-local-strict"), key=lambda path: int(path.name.split(".")[1]))
    definitions = Resource.from_contents(json.loads((newest / "_definitions.json").read_text()))
    # A field of each kind, to be misspelled.
    fields = "containerPort|restartPolicy|policyTypes|stringData|accessModes|minimum"
    for path in DEPLOY.glob("kubernetes/*.yaml"):
        text = path.read_text(encoding="utf-8")
        misspelled = re.sub(rf"\b({fields}):", r"\1s:", text)
        pairs = zip(yaml.safe_load_all(text), yaml.safe_load_all(misspelled), strict=True)
        for manifest, wrong in pairs:
            group, _, version = manifest["apiVersion"].rpartition("/")
            name = manifest["kind"].lower()
            if manifest["apiVersion"] == DASK:
                crd = operator / "dask-kubernetes-operator/crds" / f"{name}.yaml"
                schema = read_strict_schema(crd, version)
            else:
                words = (name, *filter(None, (group.partition(".")[0], version)))
                schema = json.loads((newest / f"{'-'.join(words)}.json").read_text())
            validator = Draft202012Validator(schema, registry=definitions @ Registry())
            assert [error.message for error in validator.iter_errors(manifest)] == []
            assert not validator.is_valid(wrong), name


def find_package(name: str) -> Path:
    """Find the folder of a package without importing it; skip the test if it is not installed."""
    spec = find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("pip install --no-deps kubernetes-validate dask-kubernetes")
    return Path(spec.submodule_search_locations[0])


def read_strict_schema(crd: Path, version: str) -> Any:
    """Read the schema of a custom resource, without fields that it does not name."""
    versions = yaml.load(crd.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == version)
    # Every resource has these; custom ones need not name them.
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
    for part in list(iter_schemas(schema)):
        if "properties" in part and "x-kubernetes-preserve-unknown-fields" not in part:
            part.setdefault("additionalProperties", False)
    return schema


def iter_schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and those of its fields and items."""
    yield schema
    inner = [schema.get("items"), schema.get("additionalProperties")]
    for part in [*schema.get("properties", {}).values(), *inner]:
        if isinstance(part, dict):
            yield from iter_schemas(part)


def pods(manifests: dict[tuple[str, str], Any]) -> list[Any]:
    cluster = manifests["DaskCluster", "latentbits"].spec
    others = [manifests["Deployment", "latentbits-worker"], manifests["Job", "latentbits-setup"]]
    return [cluster.scheduler.spec, cluster.worker.spec, *(o.spec.template.spec for o in others)]


def test_manifests_fit_together(manifests) -> None:
    assert {kind for kind, _ in manifests} == {*KINDS}
    worker = manifests["Deployment", "latentbits-worker"].spec
    assert worker.selector.matchLabels == worker.template.metadata.labels
    cluster = manifests["DaskCluster", "latentbits"]
    assert manifests["DaskAutoscaler", "latentbits"].spec.cluster == cluster.metadata.name
    # Labels that the operator gives to its pods.
    labels = {"dask.org/cluster-name": "latentbits", "dask.org/component": "scheduler"}
    service = cluster.spec.scheduler.service
    policy = manifests["NetworkPolicy", "latentbits-scheduler"].spec
    assert service.selector == policy.podSelector.matchLabels == labels
    assert [port.port for port in policy.ingress[0].ports] == [8786]
    assert getattr(policy.ingress[1], "from"), "the HTTP API is for the operator alone"


def test_pods_find_secrets_ports_and_volumes(manifests) -> None:
    secrets = {name for kind, name in manifests if kind == "Secret"}
    claims = {name for kind, name in manifests if kind == "PersistentVolumeClaim"}
    for pod in pods(manifests):
        volumes = {volume.name for volume in pod.volumes}
        assert {volume.secret.secretName for volume in pod.volumes if volume.secret} <= secrets
        claimed = [one.persistentVolumeClaim for one in pod.volumes if one.persistentVolumeClaim]
        assert {claim.claimName for claim in claimed} <= claims
        for container in pod.containers:
            assert {one.secretRef.name for one in container.envFrom} <= secrets
            assert {mount.name for mount in container.volumeMounts} == volumes
            if claimed:  # the user may write there, and Docker's folder of compiled functions is it
                assert pod.securityContext
                assert pod.securityContext.fsGroup == container.securityContext.runAsUser
                folders = {mount.mountPath for mount in container.volumeMounts}
                assert f"mkdir -p {max(folders, key=len)}" in (DEPLOY / "Dockerfile").read_text()
            ports = {port.name for port in container.ports}
            for probe in (container.readinessProbe, container.livenessProbe):
                assert probe is None or probe.httpGet.port in ports
            if pod.restartPolicy == "Always":
                assert container.livenessProbe
                assert container.resources
    keys = manifests["Secret", "latentbits-certificates"].stringData
    for name in ("ca.pem", "node.pem", "node-key.pem"):
        assert name in keys


def test_both_ways_start_the_same_commands(manifests) -> None:
    told = read_compose().services
    setup = manifests["Job", "latentbits-setup"].spec.template.spec.containers[0]
    worker = manifests["Deployment", "latentbits-worker"].spec.template.spec.containers[0]
    assert (setup.args, worker.args) == (told["setup"].command, told["worker"].command)
    names = {one.name for one in worker.env}
    assert names == {name for name in told["worker"].environment if name[:10] == "LATENTBITS"}


def test_no_secret_stands_in_a_file(manifests) -> None:
    for (kind, _), secret in manifests.items():
        if kind == "Secret":
            assert not any(secret.stringData.values())
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "PRIVATE KEY" not in text
        given = re.findall(r"(?:PASSWORD|SECRET\w*_KEY|AUTH_STRING)(?:: +|=)([^\s#]+)", text)
        refers = ('"', "$", "${", '"$')
        assert [v for v in given if not v.startswith(refers) and v != "admin:"] == [], path.name


def test_automations_are_what_prefect_takes() -> None:
    for name in ("automations.yaml", "messages.yaml"):
        told = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
        for one in told["automations"]:
            AutomationCore.model_validate(one)


def test_setup_creates_the_automations_that_end_runs() -> None:
    text = (DEPLOY / "automations.yaml").read_text(encoding="utf-8")
    automations = yaml.safe_load(text)["automations"]
    setup = (DEPLOY / "setup.sh").read_text(encoding="utf-8")
    assert f'automation inspect "{automations[0]["name"]}"' in setup
    tags = {
        automation["trigger"]["match_related"]["prefect.resource.id"] for automation in automations
    }
    assert tags == {"prefect.tag.latentbits"}


def test_deployments_name_flows_and_their_parameters() -> None:
    told = yaml.safe_load((DEPLOY / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    assert {one["entrypoint"].split(".")[1] for one in told} == {
        "ingest",
        "fit",
        "transform",
        "report",
    }
    for one in told:
        flow = load_flow_from_entrypoint(one["entrypoint"], use_placeholder_flow=False)
        assert set(one["parameters"]) <= set(flow.parameters.properties), one["name"]
        assert set(flow.parameters.required) <= set(one["parameters"]), one["name"]
        assert "latentbits" in one["tags"]  # see automations.yaml
        assert one["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
        assert one["work_pool"]["work_queue_name"] == "votes"
    (setup,) = DEPLOY.glob("setup.sh")
    text = setup.read_text(encoding="utf-8")
    assert "work-queue create votes --pool latentbits --limit 1" in text
    subprocess.run(["sh", "-n", str(setup)], check=True)


def test_what_the_page_makes_is_left_out_of_git(tmp_path: Path) -> None:
    """Data and secrets that its commands leave in the folder of latentbits."""
    page = (DEPLOY.parent / ".docs" / "tasks" / "schedules.md").read_text(encoding="utf-8")
    folders = re.findall(r"mkdir -p ([\w ]+)$", page, re.MULTILINE)[0].split()
    keys = re.findall(r"latentbits certificates (\S+)", page)
    secrets = re.findall(r"^    cp \S+ (\S+)", page, re.MULTILINE)
    assert (folders, keys, secrets) == (
        ["incoming", "data"],
        ["deploy/certificates"],
        ["deploy/.env"],
    )
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(DEPLOY.parent / ".gitignore", tmp_path)
    left = [f"{folder}/file" for folder in (*folders, *keys)] + secrets
    asked = ["git", "-C", tmp_path, "check-ignore", *left, "flows/data/datasets.py"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True)
    assert found.stdout.split() == left
