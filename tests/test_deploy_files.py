"""What lies in deploy/: there is no container engine here, so files are held against their schemas.

The models below are the parts of the Compose specification and of Kubernetes that the files use;
a field that they do not know is an error. The commands in them are run by the end-to-end test.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from prefect.flows import load_flow_from_entrypoint
from pydantic import BaseModel, ConfigDict, Field

from tests.support.compose import load_compose

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != ".env")
SECRETS = {
    name: f"the-{name}"
    for name in ("PREFECT_USER_PASSWORD", "POSTGRES_PASSWORD", "STORE_USER", "STORE_PASSWORD")
}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Build(Strict):
    context: str
    dockerfile: str


class Condition(Strict):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


class Health(Strict):
    test: list[str]
    interval: str
    start_period: str | None = None


class Replicas(Strict):
    replicas: int


class Service(Strict):
    image: str
    build: Build | None = None
    restart: Literal["no", "unless-stopped"] = "no"
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    environment: dict[str, str] = {}
    secrets: list[str] = []
    ports: list[str] = []
    volumes: list[str] = []
    depends_on: dict[str, Condition] = {}
    healthcheck: Health | None = None
    deploy: Replicas | None = None


class SecretFile(Strict):
    file: str


class Compose(Strict):
    name: str
    services: dict[str, Service]
    secrets: dict[str, SecretFile]
    volumes: dict[str, None]


def read_compose() -> Compose:
    told = load_compose(SECRETS)
    return Compose(**{name: value for name, value in told.items() if name[:2] != "x-"})


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


class NamedMetadata(Strict):
    name: str
    labels: dict[str, str] = {}


class Meta(Strict):
    labels: dict[str, str] = {}


class EnvVar(Strict):
    name: str
    value: str


class SecretRef(Strict):
    name: str


class EnvFrom(Strict):
    secret_ref: SecretRef = Field(alias="secretRef")


class Port(Strict):
    name: str
    container_port: int = Field(alias="containerPort")


class HttpGet(Strict):
    path: str
    port: str


class Probe(Strict):
    http_get: HttpGet = Field(alias="httpGet")
    initialDelaySeconds: int = 0
    periodSeconds: int = 10
    failureThreshold: int = 3


class Resources(Strict):
    requests: dict[str, str]
    limits: dict[str, str]


class Security(Strict):
    allowPrivilegeEscalation: Literal[False]
    runAsNonRoot: Literal[True]
    runAsUser: int


class Mount(Strict):
    name: str
    mountPath: str
    readOnly: bool = False


class Container(Strict):
    name: str
    image: Literal["latentbits"]
    args: list[str]
    env: list[EnvVar] = []
    env_from: list[EnvFrom] = Field([], alias="envFrom")
    ports: list[Port] = []
    readinessProbe: Probe | None = None
    livenessProbe: Probe | None = None
    resources: Resources | None = None
    securityContext: Security
    volumeMounts: list[Mount] = []


class SecretName(Strict):
    secretName: str


class ClaimName(Strict):
    claimName: str


class Volume(Strict):
    name: str
    secret: SecretName | None = None
    persistentVolumeClaim: ClaimName | None = None


class PodSecurity(Strict):
    fsGroup: int


class Pod(Strict):
    securityContext: PodSecurity | None = None
    containers: list[Container]
    volumes: list[Volume] = []
    terminationGracePeriodSeconds: int = 30
    restartPolicy: Literal["Always", "Never"] = "Always"


class Template(Strict):
    metadata: Meta = Meta()
    spec: Pod


class ServicePort(Strict):
    name: str
    protocol: Literal["TCP"]
    port: int
    targetPort: str


class ServiceSpec(Strict):
    type: Literal["ClusterIP"]
    selector: dict[str, str]
    ports: list[ServicePort]


class Scheduler(Strict):
    spec: Pod
    service: ServiceSpec


class Workers(Strict):
    replicas: int
    spec: Pod


class ClusterSpec(Strict):
    scheduler: Scheduler
    worker: Workers


class DaskCluster(Strict):
    apiVersion: Literal["kubernetes.dask.org/v1"]
    kind: Literal["DaskCluster"]
    metadata: NamedMetadata
    spec: ClusterSpec


class ScalerSpec(Strict):
    cluster: str
    minimum: int
    maximum: int


class DaskAutoscaler(Strict):
    apiVersion: Literal["kubernetes.dask.org/v1"]
    kind: Literal["DaskAutoscaler"]
    metadata: NamedMetadata
    spec: ScalerSpec


class Selector(Strict):
    matchLabels: dict[str, str]


class Strategy(Strict):
    type: Literal["Recreate"]


class DeploymentSpec(Strict):
    replicas: int
    strategy: Strategy
    selector: Selector
    template: Template


class Deployment(Strict):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: NamedMetadata
    spec: DeploymentSpec


class JobSpec(Strict):
    backoffLimit: int
    ttlSecondsAfterFinished: int
    template: Template


class Job(Strict):
    apiVersion: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: NamedMetadata
    spec: JobSpec


class Secret(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["Secret"]
    metadata: NamedMetadata
    type: Literal["Opaque"]
    stringData: dict[str, str]


class Peer(Strict):
    namespaceSelector: Selector


class AllowedPort(Strict):
    protocol: Literal["TCP"]
    port: int


class Allowed(Strict):
    ports: list[AllowedPort]
    from_: list[Peer] | None = Field(None, alias="from")


class PolicySpec(Strict):
    podSelector: Selector
    policyTypes: list[Literal["Ingress"]]
    ingress: list[Allowed]


class NetworkPolicy(Strict):
    apiVersion: Literal["networking.k8s.io/v1"]
    kind: Literal["NetworkPolicy"]
    metadata: NamedMetadata
    spec: PolicySpec


class Storage(Strict):
    storage: str


class Request(Strict):
    requests: Storage


class ClaimSpec(Strict):
    accessModes: list[Literal["ReadWriteMany"]]
    resources: Request


class PersistentVolumeClaim(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: NamedMetadata
    spec: ClaimSpec


MANIFEST_KINDS = (
    DaskCluster,
    DaskAutoscaler,
    Deployment,
    Job,
    Secret,
    NetworkPolicy,
    PersistentVolumeClaim,
)


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """All manifests by kind and name."""
    kinds = {kind.__name__: kind for kind in MANIFEST_KINDS}
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.glob("kubernetes/*.yaml")]
    told = [one for text in texts for one in yaml.safe_load_all(text)]
    return {(one["kind"], one["metadata"]["name"]): kinds[one["kind"]](**one) for one in told}


def pods(manifests: dict[tuple[str, str], Any]) -> list[Pod]:
    cluster = manifests["DaskCluster", "latentbits"].spec
    others = [manifests["Deployment", "latentbits-worker"], manifests["Job", "latentbits-setup"]]
    return [cluster.scheduler.spec, cluster.worker.spec, *(o.spec.template.spec for o in others)]


def test_manifests_fit_together(manifests) -> None:
    assert {kind for kind, _ in manifests} == {kind.__name__ for kind in MANIFEST_KINDS}
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
    assert policy.ingress[1].from_, "the HTTP API is for the operator alone"


def test_pods_find_secrets_ports_and_volumes(manifests) -> None:
    secrets = {name for kind, name in manifests if kind == "Secret"}
    claims = {name for kind, name in manifests if kind == "PersistentVolumeClaim"}
    for pod in pods(manifests):
        volumes = {volume.name for volume in pod.volumes}
        assert {volume.secret.secretName for volume in pod.volumes if volume.secret} <= secrets
        claimed = [one.persistentVolumeClaim for one in pod.volumes if one.persistentVolumeClaim]
        assert {claim.claimName for claim in claimed} <= claims
        for container in pod.containers:
            assert {one.secret_ref.name for one in container.env_from} <= secrets
            assert {mount.name for mount in container.volumeMounts} == volumes
            if claimed:  # the user may write there, and Docker's folder of compiled functions is it
                assert pod.securityContext
                assert pod.securityContext.fsGroup == container.securityContext.runAsUser
                folders = {mount.mountPath for mount in container.volumeMounts}
                assert f"mkdir -p {max(folders, key=len)}" in (DEPLOY / "Dockerfile").read_text()
            ports = {port.name for port in container.ports}
            for probe in (container.readinessProbe, container.livenessProbe):
                assert probe is None or probe.http_get.port in ports
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
    told = yaml.safe_load((DEPLOY / "automations.yaml").read_text(encoding="utf-8"))
    for one in told["automations"]:
        AutomationCore.model_validate(one)


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
