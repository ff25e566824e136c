"""Which processes are an engine, and where it can be reached: in a tree that looks like /proc."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fakes.proc_tree import ProcTree

from aie_agent.samples import Found
from aie_agent.sources.base import SourceError
from aie_agent.sources.discovery import MAX_FOUND, DiscoverySource, Scanner

HEX = "0123456789abcdef" * 4
VLLM = "python3\0/usr/bin/vllm\0serve\0m\0"


class Host:
    """A /proc with listening sockets. Those of another network namespace stand in the table of their process only."""

    def __init__(self, root: Path) -> None:
        self.tree = ProcTree(root)
        self.scanner = Scanner(root)
        self._rows: dict[str, list[str]] = {"": []}
        self._inode = 1000
        self._write()

    def process(self, tgid: int, argv: str, parent: int = 1, session: int = 0, **options: object) -> None:
        self.tree.process(tgid, cmdline=argv, start=tgid * 10, **options)
        stat = self.tree.root / str(tgid) / "stat"
        head, _, tail = stat.read_text().rpartition(") ")
        fields = tail.split(" ")
        fields[1], fields[3] = str(parent), str(session or tgid)
        stat.write_text(f"{head}) {' '.join(fields)}")
        (self.tree.root / str(tgid) / "fd").mkdir()

    def listen(self, tgid: int, port: int, address: str = "00000000", namespace: str = "", uid: int = 0) -> str:
        self._inode += 1
        rows = self._rows.setdefault(namespace, [])
        rows.append(f"   0: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 {self._inode} 1 0")
        folder = self.tree.root / str(tgid) / "fd"
        os.symlink(f"socket:[{self._inode}]", folder / str(self._inode))
        self._write()
        return str(self._inode)

    def join(self, tgid: int, namespace: str) -> None:
        """The process is in that network namespace."""
        self.tree.write(f"{tgid}/net/tcp", "header\n" + "\n".join(self._rows.get(namespace, [])) + "\n")

    def _write(self) -> None:
        self.tree.write("net/tcp", "header\n" + "\n".join(self._rows[""]) + "\n")

    def scan(self) -> list[Found]:
        return self.scanner.scan()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "proc")


def test_nothing(host: Host) -> None:
    assert host.scan() == []


def test_no_proc(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is /proc mounted"):
        Scanner(tmp_path).scan()


def test_vllm_with_its_engine_core_and_workers(host: Host) -> None:
    host.process(10, VLLM)
    host.process(11, "VLLM::EngineCore", parent=10)
    host.process(12, "VLLM::Worker_TP0", parent=11)
    host.process(13, "python3\0-c\0from multiprocessing.resource_tracker\0", parent=10)
    host.process(20, "bash\0", parent=1)
    assert host.scan() == [], "it loads, and does not serve yet"
    host.listen(12, 41234)
    assert host.scan() == [], "workers listen for each other"
    host.listen(10, 8000)
    (found,) = host.scan()
    assert found == Found("vllm-8000", "vllm", (10, 11, 12, 13), "http://127.0.0.1:8000/metrics", place="vllm-8000")


def test_a_worker_whose_parent_ended_is_known_by_its_session(host: Host) -> None:
    host.process(10, VLLM)
    host.listen(10, 8000)
    host.process(12, "VLLM::Worker_TP0", parent=1, session=10)
    host.process(13, "VLLM::Worker_TP0", parent=1, session=77)
    (found,) = host.scan()
    assert found.tgids == (10, 12)


def test_the_router_of_tgi_holds_the_port(host: Host) -> None:
    host.process(10, "text-generation-launcher\0--model-id\0m\0")
    host.process(11, "text-generation-router\0--port\0" + "8080\0", parent=10)
    host.process(12, "python3\0/bin/text-generation-server\0serve\0m\0", parent=10)
    host.listen(12, 29500, "0100007F")
    host.listen(11, 8080)
    (found,) = host.scan()
    assert (found.kind, found.tgids) == ("tgi", (10, 11, 12))


def test_two_engines_of_one_kind(host: Host) -> None:
    for tgid, port in ((10, 8000), (20, 8001)):
        host.process(tgid, f"{VLLM}--port\0{port}\0")
        host.listen(tgid, port)
    assert [found.name for found in host.scan()] == ["vllm-8000", "vllm-8001"]


def test_an_engine_that_another_one_started_is_its_own(host: Host) -> None:
    host.process(10, "tritonserver\0")
    host.listen(10, 8002)
    host.process(11, VLLM, parent=10)
    host.listen(11, 8000)
    assert [(found.name, found.tgids) for found in host.scan()] == [("triton-8002", (10,)), ("vllm-8000", (11,))]


def test_the_command_line_decides_between_ports(host: Host) -> None:
    host.process(10, f"{VLLM}--port\0" + "9000\0")
    for port in (5555, 9000, 8000):
        host.listen(10, port)
    (found,) = host.scan()
    assert found.url == "http://127.0.0.1:9000/metrics"


def test_the_sockets_win_over_the_command_line(host: Host) -> None:
    """`--port 0`, or a port from the environment."""
    host.process(10, f"{VLLM}--port\0" + "0\0")
    host.listen(10, 43210)
    (found,) = host.scan()
    assert (found.name, found.url) == ("vllm-43210", "http://127.0.0.1:43210/metrics")


def test_triton_without_its_metrics_port(host: Host) -> None:
    host.process(10, "tritonserver\0--allow-metrics=false\0")
    host.listen(10, 8000)
    (found,) = host.scan()
    assert found.url is None
    assert "does not listen at port 8002" in str(found.note)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("00000000", "http://127.0.0.1:8000/prometheus/metrics"),
        ("0100007F", "http://127.0.0.1:8000/prometheus/metrics"),
        ("0200007F", "http://127.0.0.2:8000/prometheus/metrics"),
        ("0" * 32, "http://[::1]:8000/prometheus/metrics"),
        ("0" * 24 + "01000000", "http://[::1]:8000/prometheus/metrics"),
        ("0100000A", None),
    ],
)
def test_only_loopback_is_ever_asked(host: Host, address: str, url: str | None) -> None:
    host.process(10, "trtllm-serve\0m\0")
    host.listen(10, 8000, address)
    (found,) = host.scan()
    assert found.url == url
    assert (found.note is None) == (url is not None)


def test_started_without_the_flag_that_gives_a_page(host: Host) -> None:
    host.process(10, "llama-server\0-m\0x.gguf\0")
    host.listen(10, 8080)
    host.process(20, "python3\0-m\0sglang.launch_server\0--enable-metrics\0")
    host.listen(20, 30000)
    llama, sglang = host.scan()
    assert (llama.url, llama.hint) == ("http://127.0.0.1:8080/metrics", "it was started without --metrics")
    assert sglang.hint is None


def test_tls(host: Host) -> None:
    host.process(10, f"{VLLM}--ssl-certfile\0x.pem\0")
    host.listen(10, 8000)
    (found,) = host.scan()
    assert found.url is None
    assert "TLS" in str(found.note)


def test_its_own_name(host: Host) -> None:
    host.process(10, "aie-engine\0serve\0--name\0chat\0")
    host.listen(10, 8000)
    host.process(20, "aie-engine\0serve\0--name\0not a name\0--port\0" + "8001\0")
    host.listen(20, 8001)
    assert [found.name for found in host.scan()] == ["chat", "aie-engine-8001"]


POD = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"


class TestContainers:
    def test_in_the_hosts_network(self, host: Host) -> None:
        host.process(10, VLLM, cgroup=f"0::/system.slice/docker-{HEX}.scope\n")
        host.listen(10, 8000)
        (found,) = host.scan()
        assert found == Found("vllm-8000", "vllm", (10,), "http://127.0.0.1:8000/metrics", "0123456789ab", place="vllm-8000")

    @pytest.mark.parametrize(
        "cgroup",
        [
            f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{HEX}.scope\n",
            f"12:cpu:/docker/{HEX}\n11:memory:/docker/{HEX}\n",
            f"0::/machine.slice/libpod-{HEX}.scope/container\n",
        ],
    )
    def test_in_a_network_of_its_own(self, host: Host, cgroup: str) -> None:
        """The page at 127.0.0.1 would be somebody else's."""
        host.process(10, VLLM, cgroup=cgroup)
        host.listen(10, 8000, namespace="c")
        host.join(10, "c")
        host.process(20, "nginx\0")
        host.listen(20, 8000)
        (found,) = host.scan()
        assert (found.name, found.url, found.container) == ("vllm-0123456789ab", None, "0123456789ab")
        assert found.pod == (POD if "kubepods" in cgroup else None)
        assert "port 8000 of container 0123456789ab, not of this host" in str(found.note)

    def test_a_namespace_without_a_container(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000, namespace="n")
        host.join(10, "n")
        (found,) = host.scan()
        assert (found.name, found.container) == ("vllm-pid10", None)
        assert "another network namespace" in str(found.note)


class TestBesideInAContainer:
    """Ray's and mpirun's workers are no children of the engine. 5 is the first process of the container, 2000 is outside."""

    CGROUP = f"0::/system.slice/docker-{HEX}.scope\n"

    @pytest.fixture
    def ray(self, host: Host) -> Host:
        host.process(5, "sh\0entrypoint.sh\0", cgroup=self.CGROUP)
        host.process(10, VLLM, parent=5, cgroup=self.CGROUP)
        host.listen(10, 8000)
        return host

    def worker(
        self, host: Host, tgid: int, line: str = "ray::RayWorkerWrapper\0", device: str = "/dev/nvidia-uvm", **options
    ) -> None:  # type: ignore[no-untyped-def]
        host.process(tgid, line, **{"parent": 5, "cgroup": self.CGROUP} | options)
        (host.tree.root / str(tgid) / "fd" / "9").symlink_to(device)

    def members(self, host: Host) -> tuple[int, ...]:
        (found,) = host.scan()
        return found.tgids

    @pytest.mark.parametrize("device", ["/dev/nvidia-uvm", "/dev/kfd"])
    def test_a_worker_that_computes(self, ray: Host, device: str) -> None:
        self.worker(ray, 20, device=device)
        assert self.members(ray) == self.members(ray) == (10, 20)

    def test_below_a_daemon_of_the_container(self, ray: Host) -> None:
        ray.process(7, "raylet\0", parent=5, cgroup=self.CGROUP)
        self.worker(ray, 20, parent=7)
        assert self.members(ray) == (10, 20), "the daemon began before, and does not compute"

    def test_one_that_calls_itself_a_worker(self, ray: Host) -> None:
        self.worker(ray, 20, line="VLLM::Worker_TP1\0", device="/dev/null", session=77)
        self.worker(ray, 21, line="sglang::scheduler\0", device="/dev/null", session=77)
        assert self.members(ray) == (10, 20)

    def test_what_only_looks_at_gpus(self, ray: Host) -> None:
        """A monitor holds /dev/nvidia0 and /dev/nvidiactl, and computes nothing."""
        self.worker(ray, 20, line="dcgm-exporter\0", device="/dev/nvidiactl")
        self.worker(ray, 21, line="nginx\0", device="/dev/null")
        assert self.members(ray) == (10,)

    def test_what_was_there_before(self, ray: Host) -> None:
        self.worker(ray, 8)
        assert self.members(ray) == (10,)

    def test_who_entered_the_container(self, ray: Host) -> None:
        """As with `docker exec`: its parent is outside."""
        ray.process(2000, "containerd-shim\0")
        self.worker(ray, 20, parent=2000)
        assert self.members(ray) == (10,)

    def test_in_another_container_or_in_none(self, ray: Host) -> None:
        self.worker(ray, 20, cgroup=f"0::/docker-{HEX[::-1]}.scope\n")
        self.worker(ray, 21, cgroup="0::/\n")
        assert self.members(ray) == (10,)

    def test_two_engines_in_one_container(self, ray: Host) -> None:
        """Nobody knows whose it is."""
        ray.process(11, f"{VLLM}--port\0" + "8001\0", parent=5, cgroup=self.CGROUP)
        ray.listen(11, 8001)
        self.worker(ray, 20)
        assert [found.tgids for found in ray.scan()] == [(10,), (11,)]

    def test_an_engine_outside_of_containers_gets_nothing(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000)
        self.worker(host, 20, cgroup="0::/\n", parent=1)
        assert self.members(host) == (10,)


class TestAnotherUsers:
    """Descriptors that may not be read: no `fd` folder here."""

    def test_somebody_listens_where_the_command_line_says(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000)
        host.join(10, "")
        self._hide(host, 10)
        (found,) = host.scan()
        assert found.url == "http://127.0.0.1:8000/metrics"

    def test_nobody_does(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8001)
        host.join(10, "")
        self._hide(host, 10)
        assert host.scan() == []

    def _hide(self, host: Host, tgid: int) -> None:
        folder = host.tree.root / str(tgid) / "fd"
        for link in folder.iterdir():
            link.unlink()
        folder.rmdir()


class TestAgainAndAgain:
    def test_a_shell_that_becomes_an_engine(self, host: Host) -> None:
        host.process(10, "bash\0entrypoint.sh\0", comm="bash")
        host.listen(10, 8000)
        assert host.scan() == []
        host.process(10, VLLM, comm="vllm")
        host.listen(10, 8000)
        assert [found.name for found in host.scan()] == ["vllm-8000"]

    def test_an_old_command_line_is_read_once(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000)
        assert len(host.scan()) == 1
        (host.tree.root / "10/cmdline").unlink()
        assert len(host.scan()) == 1
        host.tree.uptime(50.0)
        assert host.scan() == [], "it is young again, and read again"

    def test_the_descriptors_are_read_until_the_socket_is_known(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000)
        before = host.scan()
        for link in (host.tree.root / "10/fd").iterdir():
            link.unlink()
        assert host.scan() == before

    def test_an_engine_that_ended(self, host: Host) -> None:
        host.process(10, VLLM)
        host.listen(10, 8000)
        assert host.scan()
        host.tree.end(10)
        assert host.scan() == []

    def test_a_zombie(self, host: Host) -> None:
        host.process(10, VLLM, state="Z")
        host.listen(10, 8000)
        assert host.scan() == []


def test_parents_in_a_circle(host: Host) -> None:
    """They are read one by one, while they change."""
    host.process(10, VLLM, parent=11)
    host.process(11, "sh\0", parent=10)
    host.listen(10, 8000)
    (found,) = host.scan()
    assert 10 in found.tgids


def test_hostile_command_lines(host: Host) -> None:
    for tgid, line in enumerate(("\0\0\0", "\udcff\udcfe\0serve", "python3\0-m\0", "VLLM::\0" * 5000, "vllm\0serve\0--port\0"), 10):
        host.process(tgid, line)
        host.listen(tgid, 7000 + tgid)
    assert [found.name for found in host.scan()] == ["vllm-7014"]


def test_a_command_line_cannot_send_the_agent_to_another_users_port(host: Host) -> None:
    """Where descriptors may not be read, who listens is only known by whose socket it is."""
    host.process(10, f"{VLLM}--port\0" + "631\0", uid=666)
    host.process(20, "cupsd\0")
    host.listen(20, 631, "0100007F", uid=0)
    host.join(10, "")
    shutil.rmtree(host.tree.root / "10" / "fd")
    assert host.scan() == []
    (host.tree.root / "10" / "fd").mkdir()
    host.listen(10, 631, "0200007F", uid=666)
    host.join(10, "")
    shutil.rmtree(host.tree.root / "10" / "fd")
    assert [found.url for found in host.scan()] == ["http://127.0.0.2:631/metrics"]


def test_no_more_than_so_many(host: Host) -> None:
    for at in range(MAX_FOUND + 5):
        host.process(100 + at, f"{VLLM}--port\0{9000 + at}\0")
        host.listen(100 + at, 9000 + at)
    assert len(host.scan()) == MAX_FOUND
    assert host.scanner.left_out == {0: 5}


def test_imitations_of_one_user_hide_no_engine_of_another(host: Host) -> None:
    for at in range(MAX_FOUND + 8):
        host.process(100 + at, f"{VLLM}--port\0{9000 + at}\0", uid=666)
        host.listen(100 + at, 9000 + at, uid=666)
    host.process(9000, VLLM, uid=7)
    host.listen(9000, 8000, uid=7)
    host.process(9001, f"{VLLM}--port\0{8001}\0", uid=0)
    host.listen(9001, 8001)
    names = [found.name for found in host.scan()]
    assert len(names) == MAX_FOUND
    assert names[0] == "vllm-8001", "root's and the agent's own come first"
    assert names.index("vllm-8000") < 3
    assert host.scanner.left_out == {666: 10}


def test_a_user_whose_engines_are_alone_gets_all_there_is(host: Host) -> None:
    for at in range(MAX_FOUND):
        host.process(100 + at, f"{VLLM}--port\0{9000 + at}\0", uid=7)
        host.listen(100 + at, 9000 + at, uid=7)
    assert len(host.scan()) == MAX_FOUND
    assert host.scanner.left_out == {}


async def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    host = Host(tmp_path / "proc")
    source = DiscoverySource(proc=host.tree.root)
    for at in range(MAX_FOUND + 1):
        host.process(100 + at, f"{VLLM}--port\0{9000 + at}\0", uid=666)
        host.listen(100 + at, 9000 + at, uid=666)
    with pytest.raises(
        SourceError, match=f"the first {MAX_FOUND} of {MAX_FOUND + 1} engines are watched, 1 of user 666 is not"
    ) as error:
        await source.collect(1.0)
    assert error.value.batch is not None
    assert len(error.value.batch.found or []) == MAX_FOUND
    host.tree.end(100)
    assert len((await source.collect(2.0)).found or []) == MAX_FOUND
