"""The files of /proc: hostile and old ones from a table, real ones against psutil."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from fakes.privilege import NOBODY, public_directory, unprivileged
from fakes.proc_tree import ProcTree
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.sources import procfs_text as text
from aie_agent.sources.procfs import Procfs, TaskTimes
from aie_agent.sources.procfs_text import ContextSwitches

STAT = b"""cpu  10132153 290696 3084719 46828483 16683 12 25195 5 175628 9
cpu0 1393280 32966 572056 13343292 6130 0 17875 0 23933 0
cpu2 1335498 28966 544712 13338852 6062 0 17875 0 23932 0
intr 8885917 17 0
ctxt 1990473
btime 1062191376
"""


def test_cpu_modes_are_disjoint_and_guest_time_is_not_counted_twice() -> None:
    times = text.cpu_times(STAT)
    assert tuple(times.ticks) == text.CPU_MODES
    assert times.ticks["user"] == 10132153  # guest (175628) is in there, as the kernel counts it
    assert times.ticks["steal"] == 5
    assert sum(times.ticks.values()) == 10132153 + 290696 + 3084719 + 46828483 + 16683 + 12 + 25195 + 5
    assert times.online == 2  # cpu1 is offline


def test_modes_that_an_old_kernel_lacks_are_absent() -> None:
    assert text.cpu_times(b"cpu  1 2 3 4\n").ticks == {"user": 1, "nice": 2, "system": 3, "idle": 4}


def test_cpu_times_agree_with_psutil() -> None:
    procfs = Procfs()
    before = psutil.cpu_times()
    times = procfs.cpu_times()
    after = psutil.cpu_times()
    assert times is not None
    for mode, ticks in times.ticks.items():
        seconds = ticks / procfs.ticks_per_second
        assert getattr(before, mode) - 1 <= seconds <= getattr(after, mode) + 1, mode


def stat_line(comm: bytes) -> bytes:
    return b"4711 (" + comm + b") S 1 4711 4711 0 -1 4194304 100 0 7 0 31 12 0 0 20 0 9 0 123456 1000 20 18446744073709551615\n"


HOSTILE_NAMES = [b"a b", b")", b"((", b") S 1 2 3", b") (", b"\n", b"a) R 9 (b", b"\xff\xfe", b"", b"x) Z 1 1 1 0"]


@pytest.mark.parametrize("comm", HOSTILE_NAMES)
def test_a_process_cannot_lie_by_its_name(comm: bytes) -> None:
    stat = text.process_stat(stat_line(comm))
    assert stat == text.ProcessStat(comm, "S", 7, 31, 12, 9, 123456, parent_tgid=1, session=4711)
    assert not stat.ended


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_any_name_leaves_the_other_fields_right(comm: bytes) -> None:
    stat = text.process_stat(stat_line(comm))
    assert (stat.comm, stat.start_ticks, stat.threads) == (comm, 123456, 9)


@pytest.mark.parametrize("junk", [b"", b"1", b"1 (x", b"1 (x) S", b"1 (x) S 1 2 3 4 5\n"])
def test_what_is_no_stat_file_is_a_value_error(junk: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|name"):
        text.process_stat(junk)


def test_a_real_process_with_a_hostile_name() -> None:
    name = b"x) R 0 (\n y"
    code = f"open('/proc/self/comm','wb').write({name!r}); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = Procfs().stat(child.pid)
        assert stat is not None
        assert stat.comm == name
        assert stat.state in "RSD"
        assert Procfs().start_ticks(child.pid) == stat.start_ticks
        child.communicate(b"\n")
    assert Procfs().start_ticks(child.pid) is None


def test_a_zombie_has_ended_but_a_process_whose_main_thread_ended_has_not() -> None:
    assert text.process_stat(stat_line(b"x").replace(b") S ", b") Z ").replace(b" 20 0 9 ", b" 20 0 1 ")).ended
    assert not text.process_stat(stat_line(b"x").replace(b") S ", b") Z ")).ended


def test_a_real_zombie_has_no_start_time() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Procfs().stat(pid) is not None
    assert Procfs().start_ticks(pid) is None
    os.waitpid(pid, 0)


def test_memory_agrees_with_psutil_and_is_in_bytes() -> None:
    memory = Procfs().memory(os.getpid())
    assert memory is not None
    assert memory.resident_anon is not None
    full = psutil.Process().memory_info()
    total = memory.resident_anon + (memory.resident_file or 0) + (memory.resident_shmem or 0)
    assert abs(total - full.rss) < 8 << 20  # the kernel batches its counters


def test_a_kernel_thread_has_no_memory() -> None:
    status = b"Name:\tkthreadd\nTgid:\t2\nNSpid:\t2\nThreads:\t1\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t2\n"
    assert text.process_memory(status) == text.ProcessMemory(None, None, None, None)
    assert text.context_switches(status) == text.ContextSwitches(1, 2)


def test_threads_are_each_counted_and_the_process_file_is_the_main_thread_only() -> None:
    done = threading.Event()
    switched = threading.Event()

    def switch() -> None:
        for _ in range(50):
            time.sleep(0)  # gives the CPU up, or at least asks
            os.sched_yield()
            done.wait(0.0001)
        switched.set()
        done.wait()

    worker = threading.Thread(target=switch)
    worker.start()
    assert switched.wait(60)
    tasks = Procfs().tasks(os.getpid())
    done.set()
    assert worker.native_id in tasks
    assert tasks[worker.native_id].switches.voluntary >= 50
    assert set(tasks) >= {thread.id for thread in psutil.Process().threads()} - {worker.native_id}
    assert tasks[os.getpid()].run_queue_ns is not None
    worker.join()


def test_the_sum_over_threads_exceeds_the_process_level_file(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.process(7, threads={7: (5, 1, 2), 8: (70, 10, 20), 9: (900, 100, 200)})
    tasks = Procfs(tmp_path).tasks(7)
    assert sum(task.run_queue_ns or 0 for task in tasks.values()) == 975
    assert sum(task.switches.voluntary for task in tasks.values()) == 111
    assert sum(task.switches.involuntary for task in tasks.values()) == 222


OLD = TaskTimes(ContextSwitches(-1, -1), None)


def marked(procfs: Procfs, tgid: int) -> dict[int, TaskTimes]:
    """What is known of a process, with switches that no thread has: whoever is read loses them."""
    return {tid: OLD._replace(ran=task.ran) for tid, task in procfs.tasks(tgid).items()}


def test_a_thread_that_has_not_run_is_as_it_was_and_one_that_has_is_read() -> None:
    procfs, me = Procfs(), os.getpid()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        while procfs.tasks(sleeper.pid, marked(procfs, sleeper.pid))[sleeper.pid].switches != OLD.switches:
            time.sleep(0.001)  # it has not come to rest
        sleeper.kill()
    known = marked(procfs, me)
    while procfs.tasks(me, known)[me].switches == OLD.switches:
        sum(range(100_000))  # what a thread ran is counted at the kernel's next tick: it is read, or this never ends


def test_where_the_kernel_does_not_count_runs_every_thread_is_read(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.process(7, threads={7: (5, 1, 2)})
    tree.write("7/task/7/schedstat", "0 0 0\n")
    known = {7: OLD._replace(ran=b"0 0 0\n")}
    assert Procfs(tmp_path).tasks(7, known)[7].switches == (1, 2)


def test_a_kernel_without_schedstat_gives_none(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.process(7)
    (tmp_path / "7/task/7/schedstat").unlink()
    assert Procfs(tmp_path).tasks(7)[7].run_queue_ns is None


def test_what_is_gone_is_none(tmp_path: Path) -> None:
    procfs = Procfs(ProcTree(tmp_path).root)
    assert procfs.stat(99) is None
    assert procfs.memory(99) is None
    assert procfs.tasks(99) == {}
    assert procfs.cgroups(99) is None
    assert procfs.start_ticks(99) is None
    assert procfs.command(99) == ""
    assert procfs.namespace_pids(99) == ()
    assert procfs.cpu_times() is None


def test_what_may_not_be_read_is_an_error_and_not_gone() -> None:
    with public_directory() as directory:
        tree = ProcTree(directory / "proc")
        tree.process(7)
        procfs = Procfs(tree.root)
        (tree.root / "7").chmod(0)
        with unprivileged():
            with pytest.raises(PermissionError):
                procfs.stat(7)
            with pytest.raises(PermissionError):
                procfs.tasks(7)
            assert procfs.start_ticks(7) is None
            assert not procfs.hides_processes()
        (tree.root / "7").chmod(0o755)
        tree.end(1)
        assert procfs.hides_processes()


PRESSURE = b"some avg10=0.22 avg60=0.17 avg300=1.11 total=58761459\nfull avg10=0.00 avg60=0.13 avg300=0.96 total=57422041\n"


def test_pressure() -> None:
    assert text.pressure(PRESSURE) == {"some": 58761459, "full": 57422041}
    assert text.pressure(PRESSURE.split(b"\n")[0] + b"\n") == {"some": 58761459}  # cpu before Linux 5.13
    assert text.pressure(b"") == {}


def test_meminfo_and_vmstat_take_whole_names_and_leave_out_what_is_missing() -> None:
    meminfo = b"MemTotal:       16 kB\nMemFree:   4 kB\nSwapTotal:  0 kB\n"
    assert text.meminfo(meminfo, ("MemTotal", "MemAvailable", "SwapTotal")) == {"MemTotal": 16384, "SwapTotal": 0}
    vmstat = b"xpswpin 9\npswpin 4\npswpinx 8\npgmajfault 12\n"
    assert text.vmstat(vmstat, ("pswpin", "pgmajfault", "oom_kill")) == {"pswpin": 4, "pgmajfault": 12}


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (b"0::/user.slice/a b:c\n", text.CgroupPaths("/user.slice/a b:c", None, None)),
        (b"9:name=systemd:/x\n4:memory:/m\n1:cpu,cpuacct:/c\n0::/\n", text.CgroupPaths("/", "/c", "/m")),
        (b"1:cpu:/only\n", text.CgroupPaths(None, "/only", None)),
        (b"0::/../other\n", text.CgroupPaths("/../other", None, None)),
        (b"", text.CgroupPaths(None, None, None)),
        (b"nonsense\n", text.CgroupPaths(None, None, None)),
    ],
)
def test_cgroup_paths(cgroup: bytes, expected: text.CgroupPaths) -> None:
    assert text.cgroup_paths(cgroup) == expected


def test_commands_are_one_short_printable_line() -> None:
    assert text.command_line(b"python\0-m\0vllm\0") == "python -m vllm"
    assert text.command_line(b"a\nb\0c\x1b[31m\xff\0") == "a b c\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    assert len(text.command_line(b"x" * 10_000)) == 120
    assert text.command_line(b"") == ""


def test_a_process_without_a_command_line_shows_its_name(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.process(7, comm="kswapd0", cmdline="")
    assert Procfs(tmp_path).command(7) == "[kswapd0]"


def test_namespace_pids_end_with_the_processs_own() -> None:
    assert text.namespace_pids(b"Name:\tx\nNSpid:\t4711\t42\t1\nRssAnon:\t1 kB\n") == (4711, 42, 1)
    assert text.namespace_pids(b"Name:\tx\n") == ()
    assert Procfs().namespace_pids(os.getpid())[0] == os.getpid()


UDP = b"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  122: 0100007F:1FBD 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 17
  123: 0100007F:1FBE 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 47 2 0000000000000000 3
"""


def test_udp_drops_are_those_of_the_socket_with_that_inode() -> None:
    assert text.udp_drops(UDP, 4711) == 17
    assert text.udp_drops(UDP, 47) == 3
    assert text.udp_drops(UDP, 1) is None
    assert text.udp_drops(b"", 1) is None


def test_uptime_and_start_time_are_of_one_clock() -> None:
    procfs = Procfs()
    uptime_s = procfs.uptime_s()
    ticks = procfs.start_ticks(os.getpid())
    assert uptime_s is not None
    assert ticks is not None
    age_s = uptime_s - ticks / procfs.ticks_per_second
    assert age_s == pytest.approx(time.time() - psutil.Process().create_time(), abs=2)


def test_whose_a_process_is_that_does_not_want_to_be_dumped() -> None:
    """Its folder is root's then, which any user could use to pass for root."""
    become = f"os.setuid({NOBODY}); " if os.geteuid() == 0 else ""
    code = f"import ctypes, os; {become}ctypes.CDLL(None).prctl(4, 0); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        uid = Procfs().uid(child.pid)
        assert uid == (NOBODY if os.geteuid() == 0 else os.getuid())
        child.kill()
    child.wait()
    assert Procfs().uid(child.pid) is None
