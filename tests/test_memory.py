"""Estimates of memory hold, and what does not fit is refused before it is allocated."""

import gc
import math
import platform
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    own_model,
    picture,
    skip_random_weights,
    timm_model,
    watched,
)
from threadpoolctl import threadpool_info

from vitviz.activations import capture
from vitviz.app import server
from vitviz.app.shared import models
from vitviz.model import memory
from vitviz.model.devices import use_threads
from vitviz.model.families import ModelError, family_of
from vitviz.model.memory import capture_bytes, free_bytes, model_bytes, require_memory
from vitviz.web import token_map
from vitviz.zoo.architectures import on_meta_device
from vitviz.zoo.toys import TOYS


def test_weights_are_counted_without_being_made() -> None:
    with on_meta_device():
        module = timm.create_model("vit_gigantic_patch14_224")
    sites = family_of(module).sites(module, (224, 224))
    weights = 4 * 1_844_440_680
    tokens, width, layers = 257, 1664, 48
    kept = 4 * width * (tokens * (8 * layers + 4) + 2)
    layer = 2 * 4 * 16 * tokens**2
    assert capture_bytes(sites) == kept
    assert memory.largest_attention(sites) == tokens**2  # of one head
    assert model_bytes(module, sites) == weights + kept + layer


@pytest.mark.parametrize(
    "name",
    [
        "test_vit",
        "vit_tiny_patch16_224",
        "eva02_tiny_patch14_224",
        "test_vit_relpos",
        "cait_xxs24_224",
        "swin_tiny_patch4_window7_224",
        "pvt_v2_b0",
        "twins_svt_small",
        "coatnet_nano_rw_224",
        "maxvit_tiny_tf_224",
        "mixer_s32_224",
    ],
)
def test_a_capture_holds_about_what_was_estimated(name: str) -> None:
    narrow: dict[str, dict[str, Any]] = {
        "cait_xxs24_224": dict(depth=6),
        "swin_tiny_patch4_window7_224": dict(depths=(2, 2, 2, 2)),
        "coatnet_nano_rw_224": {**TOYS["CoAtNet"].narrow},
        "maxvit_tiny_tf_224": {**TOYS["MaxViT"].narrow, "depths": (1, 1, 1, 1)},
    }
    with skip_random_weights():
        module: Any = timm.create_model(name, **narrow.get(name, {})).eval()
    model = watched(module, module.pretrained_cfg["input_size"][-2:])
    estimated = capture_bytes(model.sites)
    held = capture(model, picture()).nbytes
    assert held < 1.1 * estimated
    assert estimated < 2 * held


@pytest.mark.parametrize("name", ["test_vit", "vit_tiny_patch16_224"])
def test_the_maps_of_a_page_take_no_more_than_was_estimated(name: str) -> None:
    """Numpy's part of it, which is the larger one: torch's memory is not traced."""
    model = timm_model(name)
    acts = capture(model, picture(90, 60))
    tracemalloc.start()
    try:
        for layer in range(acts.depth):
            tracemalloc.reset_peak()
            frames = token_map.capture_frames(acts, [layer])
            shapes = [token_map.frame_shape(acts, each) for each in range(acts.depth)]
            sent = token_map.pack_stack("", frames, shapes, "share", "")
            peak = tracemalloc.get_traced_memory()[1]
            assert 2 * sent["codes"].nbytes < peak < memory.page_bytes(model.sites)
    finally:
        tracemalloc.stop()


def test_half_precision_needs_half() -> None:
    model = timm_model("test_vit")
    sites = model.sites
    whole, kept = model_bytes(model.module, sites), capture_bytes(sites)
    layer = whole - kept - sum(each.nbytes for each in model.module.state_dict().values())
    gradients = memory.gradient_bytes(sites)
    half = model_bytes(model.module.bfloat16(), model.sites)
    assert 2 * capture_bytes(model.sites) == kept
    assert 2 * (half - layer) == whole - layer  # attention is computed in single precision
    assert memory.gradient_bytes(model.sites) == gradients  # attention is made in single precision


def test_a_capture_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_model()
    needed = capture_bytes(model.sites)
    assert needed > 0
    monkeypatch.setattr(memory, "free_bytes", lambda: needed)
    capture(model, picture())
    monkeypatch.setattr(memory, "free_bytes", lambda: needed - 1)
    with pytest.raises(ModelError, match="A capture of example needs") as caught:
        capture(model, picture())
    assert_clear_error(str(caught.value).replace("0.0", "0"))


def test_what_is_free_is_read_at_most_once_a_second_for_small_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # as outside of tests
    reads: list[int] = []

    def free() -> int:
        reads.append(10**9)
        return reads[-1]

    monkeypatch.setattr(memory, "free_bytes", free)
    monkeypatch.setattr(memory, "_known_free", (-math.inf, 0))
    clock = [100.0]
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for _ in range(5):
        require_memory(10**6, "A capture")
    assert len(reads) == 1
    require_memory(10**8, "A capture")
    clock[0] += 2
    require_memory(10**6, "A capture")
    assert len(reads) == 3


# --- what is free ---------------------------------------------------------------------------------

#: A container of 4 GB, of which programs use 0.3 and the cache of files 3.6.
IN_VERSION_2 = {
    "memory.max": "4000000000\n",
    "memory.current": "3920000000\n",
    "memory.stat": "anon 300000000\nfile 3600000000\ninactive_file 3400000000\n"
    "active_file 200000000\nslab_reclaimable 20000000\nslab_unreclaimable 100\n",
}
IN_VERSION_1 = {
    "memory.limit_in_bytes": "4000000000\n",
    "memory.usage_in_bytes": "3900000000\n",
    "memory.stat": "cache 5\nactive_file 7\ntotal_cache 3600000000\n"
    "total_inactive_file 3400000000\ntotal_active_file 200000000\n",
}


IN_A_SLICE = {"cgroup": "0::/lesson.slice/app.scope\n"}
IN_A_SCOPE = {"memory.max": "max\n", "memory.current": "7\n", "memory.stat": "inactive_file 3\n"}
#: Files of control groups by their folders, what is free on the machine, and what of it is ours.
FREE: dict[str, tuple[dict[str, dict[str, str]], float, float]] = {
    "no groups": ({}, 64e9, 64e9),
    "the cache of files": ({"": {"cgroup": "0::/\n", **IN_VERSION_2}}, 64e9, 3.7e9),
    "groups of the first version": (
        {
            "": {"cgroup": "5:devices:/\n4:memory:/docker/0123\n1:name=systemd:/\n0::/\n"},
            "memory": IN_VERSION_1,
        },
        64e9,
        3.7e9,
    ),
    "a limit above this process": (
        {"": IN_A_SLICE, "lesson.slice": IN_VERSION_2, "lesson.slice/app.scope": IN_A_SCOPE},
        64e9,
        3.7e9,
    ),
    "a smaller limit of its own": (
        {
            "": IN_A_SLICE,
            "lesson.slice": IN_VERSION_2,
            "lesson.slice/app.scope": {**IN_A_SCOPE, "memory.max": "1000\n"},
        },
        64e9,
        1000 - 7 + 3,
    ),
    "more used than allowed": (
        {"": {"cgroup": "0::/\n", **IN_VERSION_2, "memory.max": "1000\n"}},
        64e9,
        0,
    ),
    "less on the machine": ({"": {"cgroup": "0::/\n", **IN_VERSION_2}}, 5000, 5000),
}


@pytest.mark.parametrize("name", FREE)
def test_what_is_free_is_the_least_of_all_limits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, available, expected = FREE[name]
    for folder, files in groups.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (tmp_path / folder / file).write_text(text)
    machine = SimpleNamespace(available=available)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUPS", tmp_path / "cgroup")
    assert free_bytes() == expected
    if name == "the cache of files":
        require_memory(50_000_000, "A capture")
        with pytest.raises(ModelError, match=r"about 3\.8 GB of memory, and 3\.7 GB are free"):
            require_memory(3_800_000_000, "A capture")


# --- what is given out ----------------------------------------------------------------------------

#: Three processes that have imported the same print one line each. A server and a usual one: how
#: many arenas ten threads that live side by side take their memory from, and how much of 8 MB lies
#: outside of them after 16 MB have been freed. One that trains: how many pages the system must give
#: again for 64 MB that were freed, as usual and kept.
PROGRAM = """
import ctypes, os, re, resource, sys, threading
from vitviz.common.malloc import keep_freed_memory, reuse_freed_memory, tune_malloc

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def told():
    file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return open(sys.argv[1]).read()

def outside():
    return int(re.findall('type="mmap" count="[0-9]+" size="([0-9]+)"', told())[-1])

def usual():
    together = threading.Barrier(11)

    def work():
        libc.malloc(100_000)
        together.wait()
        together.wait()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    together.wait()
    arenas = told().count("<heap nr")
    together.wait()
    libc.free(ctypes.c_void_p(libc.malloc(16 * 2**20)))
    before = outside()
    libc.malloc(8 * 2**20)
    print(arenas, outside() - before)

def server():
    tune_malloc()
    usual()

def faults(blocks=1, size=64 * 2**20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [ctypes.c_void_p(libc.malloc(size)) for _ in range(blocks)]
    for block in held:
        ctypes.memset(block, 1, size)
    for block in held:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def training():
    faults()
    before = faults()
    keep_freed_memory()
    faults()
    print(before, faults())

def capturing():
    faults(64, 2**20)
    before = faults(64, 2**20)
    reuse_freed_memory(2**27)
    faults(64, 2**20)
    print(before, faults(64, 2**20))

for process in (server, usual, training, capturing):
    if os.fork():
        assert os.wait()[1] == 0
    else:
        process()
        break
"""


@pytest.fixture(scope="module")
def given_out(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The numbers that each of the three processes prints."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("Arenas and mallopt are glibc's.")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("told") / "info")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [[int(number) for number in line.split()] for line in said.splitlines()]


def test_a_server_takes_few_arenas_and_gives_back_what_is_large(given_out: list[list[int]]) -> None:
    (arenas, outside), (usual_arenas, usual_outside), *_ = given_out
    assert arenas <= 2
    assert outside >= 8 * 2**20
    assert usual_arenas > 2
    assert usual_outside == 0


def test_training_reuses_the_memory_that_it_freed(given_out: list[list[int]]) -> None:
    before, after = given_out[2]
    assert before > 10  # large pages are few
    assert after < before / 10


def test_captures_reuse_the_memory_of_those_that_were_let_go(given_out: list[list[int]]) -> None:
    before, after = given_out[3]
    assert before > 1000
    assert after < before / 10


@pytest.fixture
def restored() -> Iterator[None]:
    """Later tests have the threads of earlier ones."""
    before = torch.get_num_threads()
    yield
    use_threads(before)


@pytest.mark.usefixtures("restored")
def test_garbage_is_not_looked_for_in_libraries_that_are_loaded_later() -> None:
    """Streamlit collects after every run of a page."""
    held = [object()]
    models._freeze.clear()
    server._make_more_ready()
    assert not any(found is held for found in gc.get_objects())


@pytest.mark.usefixtures("restored")
def test_a_library_that_is_loaded_later_leaves_cores_free_too() -> None:
    """That of principal components brings a BLAS of its own, which would take all cores."""
    import_module("scipy.linalg")
    use_threads(2 * joblib.cpu_count())
    server._make_more_ready()
    libraries = [found for found in threadpool_info() if found["user_api"] == "blas"]
    assert {found["num_threads"] for found in libraries} == {max(1, joblib.cpu_count() // 2)}


def test_what_other_pages_need_is_loaded_once_and_only_when_a_visitor_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = threading.Semaphore(0)
    monkeypatch.setattr(server, "_LATER", 0.0)
    monkeypatch.setattr(server, "_visited", threading.Lock())
    monkeypatch.setattr(server, "_make_more_ready", loaded.release)
    ready = threading.Thread(target=server._make_ready)
    monkeypatch.setattr(server, "_ready", ready)
    ready.start()
    ready.join()
    assert not loaded.acquire(timeout=0.2)
    for _ in range(2):  # pages
        server.wait()
    assert loaded.acquire(timeout=10)
    assert not loaded.acquire(timeout=0.2)
