"""The compile cache on disk and beyond: across processes, damaged, forbidden to miss, shared through a store, by command."""

import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest
from helpers import run_python

PROGRAM = """
import json, torch
x = torch.arange(6.0, device="tpu").reshape(2, 3)
y = (x @ x.t()).relu().sum() + 1
counters = torch.tpu.counters()
print(json.dumps([y.item(), counters["compiles"], counters["disk_hits"], counters["remote_hits"]]))
"""
VALUE = 84.0  # of y; test_value asks CPU torch


def counts(folder, **env: str) -> tuple[list[int], str]:
    """Runs the program; returns [compiles, disk hits, remote hits] and what it wrote to stderr."""
    result = run_python("-c", PROGRAM, TORCH_TPU_CACHE_DIR=str(folder), **env)
    assert result.returncode == 0, result.stderr
    value, *rest = json.loads(result.stdout)
    assert value == VALUE
    return rest, result.stderr


def command(*arguments: str, folder, **env: str) -> str:
    """The output of ``python -m torch_tpu cache``."""
    result = run_python("-m", "torch_tpu", "cache", *arguments, TORCH_TPU_CACHE_DIR=str(folder), **env)
    assert result.returncode == 0, result.stderr
    return result.stdout


def programs(folder) -> list[pathlib.Path]:
    return sorted((pathlib.Path(folder) / "programs").iterdir())


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A folder that holds the program's programs, and how many they are."""
    folder = tmp_path_factory.mktemp("cache")
    (compiles, disk, remote), stderr = counts(folder)
    assert compiles > 0 and disk == remote == 0 and stderr == ""
    assert len(programs(folder)) == compiles
    return folder, compiles


@pytest.fixture
def copy(warm, tmp_path):
    """A copy of it that may be spoilt."""
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(warm[0]), str(folder)], check=True)
    return folder


def test_value():
    import torch

    x = torch.arange(6.0).reshape(2, 3)
    assert ((x @ x.t()).relu().sum() + 1).item() == VALUE


# --- the folder ------------------------------------------------------------------------------------------------------------


def test_second_process_compiles_nothing(warm):
    folder, number = warm
    assert counts(folder) == ([0, number, 0], "")


def test_default_folder(tmp_path):
    (compiles, _, _), _ = counts("", XDG_CACHE_HOME=str(tmp_path))
    assert len(programs(tmp_path / "torch_tpu")) == compiles


def start(folder) -> subprocess.Popen:
    """The program in a process that the caller ends or waits for."""
    environment = {**os.environ, "TORCH_TPU_CACHE_DIR": str(folder)}
    for name in ("TORCH_TPU_CACHE_MODE", "TORCH_TPU_REMOTE_CACHE"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_compile_each_program_once(warm, tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    results = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0 and stderr == "", stderr
        results.append(json.loads(stdout))
    _, total = warm
    for value, compiles, disk, _ in results:
        assert value == VALUE
        assert compiles + disk == total
    assert results[0][1] + results[1][1] == total == len(programs(tmp_path))


def test_processes_killed_while_they_write(warm, tmp_path):
    """Whenever a process is killed, the next finds whole entries or none, and waits for nobody."""
    _, total = warm
    for kept in range(0, total, 2):  # killed when a file is being written, or so many entries are there
        process = start(tmp_path)
        while process.poll() is None:
            written, whole = (len(os.listdir(f)) if f.exists() else 0 for f in (tmp_path / "tmp", tmp_path / "programs"))
            if written or whole > kept:
                break
            time.sleep(0.0002)
        process.kill()
        process.communicate()
    whole = len(programs(tmp_path)) if (tmp_path / "programs").exists() else 0
    (compiles, disk, _), stderr = counts(tmp_path)
    assert stderr == ""
    assert disk == whole and compiles == total - whole
    assert len(programs(tmp_path)) == total
    assert counts(tmp_path) == ([0, total, 0], "")


def test_clock_that_was_wrong(copy, warm):
    """Times of entries in the far past and future, as after the clock was set: they are found, and soon have sane ones."""
    for number, path in enumerate(programs(copy)):
        seconds = 10.0 if number % 2 else time.time() + 1e9
        os.utime(path, (seconds, seconds))
    assert counts(copy) == ([0, warm[1], 0], "")
    assert all(abs(path.stat().st_mtime - time.time()) < 3600 for path in programs(copy))
    assert len(json.loads(command("ls", "--json", folder=copy))) == warm[1]


def test_damaged_entries_are_told_of_once_and_replaced(copy, warm):
    for number, path in enumerate(programs(copy)):
        data = bytearray(path.read_bytes())
        data[len(data) * (number % 5) // 5] ^= 4
        path.write_bytes(data[: len(data) - number % 2])
    found, stderr = counts(copy)
    assert found == [warm[1], 0, 0]
    assert stderr.count("UserWarning: torch_tpu: the compile cache has a bad entry") == stderr.count("torch_tpu:") == 1
    assert counts(copy) == ([0, warm[1], 0], "")


def test_warnings_are_python_warnings(copy):
    for path in programs(copy):
        path.write_bytes(b"something else entirely")
    code = f"""
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    exec({PROGRAM!r})
print([str(warning.message) for warning in seen])
"""
    result = run_python("-c", code, TORCH_TPU_CACHE_DIR=str(copy))
    assert "is not an entry of this cache" in result.stdout and result.stderr == ""


def test_no_home_is_told_of_once(warm):
    found, stderr = counts("", HOME="", XDG_CACHE_HOME="")
    assert found[0] == warm[1]
    assert stderr.count("neither XDG_CACHE_HOME nor HOME names a folder") == stderr.count("torch_tpu:") == 1


def test_a_folder_that_cannot_be_written_is_told_of_once(warm, tmp_path):
    (tmp_path / "file").write_text("")
    found, stderr = counts(tmp_path / "file" / "cache")
    assert found == [warm[1], 0, 0]
    assert stderr.count("cannot be written") == stderr.count("torch_tpu:") == 1


def test_limit(warm, tmp_path):
    size = sum(path.stat().st_size for path in programs(warm[0]))
    counts(tmp_path, TORCH_TPU_CACHE_LIMIT=str(size // 2))
    assert 0 < sum(path.stat().st_size for path in programs(tmp_path)) <= size // 2


def test_faulty_variables_are_refused():
    for name in ("TORCH_TPU_CACHE_LIMIT", "TORCH_TPU_CACHE_MODE"):
        result = run_python("-c", PROGRAM, **{name: "much"})
        assert result.returncode == 1 and f'ValueError: environment variable {name} is "much"' in result.stderr
    variables = {"TORCH_TPU_REMOTE_CACHE": "memory://x", "TORCH_TPU_REMOTE_TIMEOUT": "long"}
    assert run_python("-c", "import torch", **variables).returncode == 0
    result = run_python("-c", PROGRAM, **variables)
    assert 'ValueError: environment variable TORCH_TPU_REMOTE_TIMEOUT is "long"' in result.stderr


# --- modes -----------------------------------------------------------------------------------------------------------------


def test_cache_only_names_the_program(warm, tmp_path):
    found, _ = counts(warm[0], TORCH_TPU_CACHE_MODE="cache-only")
    assert found == [0, warm[1], 0]
    code = "import torch\nx = torch.ones(3, device='tpu')\nprint('made')\nx.mul_(7).tolist()"
    result = run_python("-c", code, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE_MODE="cache-only")
    assert result.returncode == 1
    assert "RuntimeError" in result.stderr and "cache-only, but the compile cache in" in result.stderr
    assert str(tmp_path) in result.stderr and "f32[3]" in result.stderr


def test_dump_on_miss_writes_texts(warm, copy):
    programs(copy)[0].unlink()
    found, _ = counts(copy, TORCH_TPU_CACHE_MODE="dump-on-miss")
    assert found == [1, warm[1] - 1, 0]
    (text,) = (copy / "misses").iterdir()
    assert text.stem == programs(warm[0])[0].name
    assert text.read_text().startswith("// ") and "func.func public @main" in text.read_text()


# --- the command -----------------------------------------------------------------------------------------------------------


def test_command(warm, copy, tmp_path):
    info = json.loads(command("info", "--json", folder=copy))
    assert info["entries"] == warm[1] == len(programs(copy)) and info["off_reason"] == ""
    assert info["bytes"] == sum(path.stat().st_size for path in programs(copy)) and info["limit"] == 4 << 30
    assert info["hits"] >= 0 and info["folder"] == str(copy)
    assert f"entries: {warm[1]}" in command("info", folder=copy)

    os.utime(programs(copy)[0], (time.time() - 7200,) * 2)
    entries = json.loads(command("ls", "--json", folder=copy))
    assert [entry["created"] for entry in entries] == sorted((entry["created"] for entry in entries), reverse=True)
    assert {entry["name"] for entry in entries} == {path.name for path in programs(copy)}
    assert any("dot_general" in entry["description"] for entry in entries)
    assert all(entry["compile_seconds"] > 0 for entry in entries)
    listing = command("ls", folder=copy).splitlines()
    assert len(listing) == warm[1] + 1 and any("2 h" in line for line in listing)

    assert "removed 1 entries" in command("clear", "--older-than", "1h", folder=copy)
    assert len(programs(copy)) == warm[1] - 1
    assert f"removed {warm[1] - 1} entries" in command("clear", folder=copy)
    assert programs(copy) == []

    script = tmp_path / "script.py"
    script.write_text("import sys\nassert sys.argv[1:] == ['--flag', 'x'] and __name__ == '__main__'\n" + PROGRAM)
    value, compiles, _, _ = json.loads(command("warm", str(script), "--flag", "x", folder=copy))
    assert value == VALUE and compiles == warm[1]
    assert counts(copy)[0] == [0, warm[1], 0]


def test_info_counts_hits_of_all_processes(copy):
    before = json.loads(command("info", "--json", folder=copy))["hits"]
    number = counts(copy)[0][1] + counts(copy)[0][1]
    assert json.loads(command("info", "--json", folder=copy))["hits"] == before + number


def test_info_says_why_the_cache_is_off():
    info = json.loads(command("info", "--json", folder="off"))
    assert info["folder"] == "" and info["off_reason"] == "TORCH_TPU_CACHE_DIR=off"


# --- the remote store ------------------------------------------------------------------------------------------------------


class Store(http.server.BaseHTTPRequestHandler):
    """Keeps what is PUT and gives it back; lists names as links. ``server.delay``: seconds before each answer."""

    def answer(self, status: int, body: bytes = b"", kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.requests.append(self.command)
        self.server.stop.wait(self.server.delay)
        name = self.path.removeprefix("/programs").strip("/")
        if not name:
            links = "".join(f'<a href="{name}">{name}</a>' for name in self.server.objects)
            self.answer(200, links.encode(), "text/html")
        elif name in self.server.objects:
            self.answer(200, self.server.objects[name])
        else:
            self.answer(404)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.server.requests.append(self.command)
        self.server.stop.wait(self.server.delay)
        self.server.objects[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def server():
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    server.objects, server.requests, server.delay, server.stop = {}, [], 0, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/programs"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_http_store(server, warm, tmp_path):
    number = warm[1]
    remote = {"TORCH_TPU_REMOTE_CACHE": server.url}
    assert counts(tmp_path / "a", **remote) == ([number, 0, 0], "")
    assert sorted(server.objects) == [path.name for path in programs(tmp_path / "a")]
    assert all(server.objects[path.name] == path.read_bytes() for path in programs(tmp_path / "a"))

    server.requests.clear()
    assert counts(tmp_path / "b", **remote) == ([0, 0, number], "")
    assert "PUT" not in server.requests
    server.requests.clear()
    assert counts(tmp_path / "b", **remote) == ([0, number, 0], "")  # kept on disk
    assert server.requests == []

    for name, entry in server.objects.items():
        server.objects[name] = entry[:-1] + bytes([entry[-1] ^ 1])
    found, stderr = counts(tmp_path / "c", **remote)
    assert found == [number, 0, 0]
    assert stderr.count("the remote compile cache has a bad entry") == stderr.count("torch_tpu:") == 1
    assert all(server.objects[path.name] == path.read_bytes() for path in programs(tmp_path / "c"))  # replaced

    assert f"{number} entries" in (output := command("warm", folder=tmp_path / "d", **remote)) and f"{number} loaded" in output
    assert counts(tmp_path / "d") == ([0, number, 0], "")
    assert f"0 loaded, {number} known" in command("warm", folder=tmp_path / "d", **remote)


def test_slow_store_is_given_up(server, warm, tmp_path):
    server.delay = 30
    found, stderr = counts(tmp_path, TORCH_TPU_REMOTE_CACHE=server.url, TORCH_TPU_REMOTE_TIMEOUT="1")
    assert found == [warm[1], 0, 0]
    assert stderr.count("reading failed: no answer within 1 s") == stderr.count("torch_tpu:") == 1
    assert 1 <= len(server.requests) <= 4  # each thread that compiles may have asked by then


def test_store_that_is_down_is_given_up(warm, tmp_path):
    pytest.importorskip("aiohttp")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/programs"
    found, stderr = counts(tmp_path, TORCH_TPU_REMOTE_CACHE=url)
    assert found == [warm[1], 0, 0]
    assert stderr.count("is given up for this process") == stderr.count("torch_tpu:") == 1


def test_unknown_protocol_is_given_up(warm, tmp_path):
    found, stderr = counts(tmp_path, TORCH_TPU_REMOTE_CACHE="carrier-pigeon://coop")
    assert found == [warm[1], 0, 0]
    assert stderr.count("Protocol not known: carrier-pigeon") == stderr.count("torch_tpu:") == 1


def test_file_store(warm, tmp_path):
    remote = {"TORCH_TPU_REMOTE_CACHE": f"file://{tmp_path}/shared/programs"}
    assert counts(tmp_path / "a", **remote) == ([warm[1], 0, 0], "")
    assert sorted(path.name for path in (tmp_path / "shared/programs").iterdir()) == [
        path.name for path in programs(tmp_path / "a")
    ]
    assert counts(tmp_path / "b", TORCH_TPU_CACHE_MODE="cache-only", **remote) == ([0, 0, warm[1]], "")


def test_fsspec_is_imported_only_when_asked_for():
    code = "import sys, torch_tpu; print('torch_tpu._remote_cache' in sys.modules)"
    assert run_python("-c", code).stdout.strip() == "False"
    assert run_python("-c", code, TORCH_TPU_REMOTE_CACHE="memory://x").stdout.strip() == "True"


def test_store_in_this_process():
    """The object itself, without programs: what is written is read, and nothing is raised."""
    from torch_tpu import _remote_cache

    store = _remote_cache.RemoteCache("memory://torch_tpu_test/programs/", timeout=20)
    name = "ab" * 32
    assert store.fetch(name) is None and store.names() == []
    store.store(name, b"bytes")
    store.close()
    assert store.fetch(name) == b"bytes" and store.names() == [name]
