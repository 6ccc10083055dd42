"""The programs, as a shell starts them."""

import ctypes
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mooncake.client import address_towards
from mooncake.http_metadata_server import KEY_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_MAX, Records
from mooncake.store import MooncakeDistributedStore


class Program:
    """A program, from what it says first to a signal."""

    def __init__(self, module, *flags):
        command = [sys.executable, "-m", f"mooncake.{module}", *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said = self.process.stdout.readline()

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


def asked(port, path, method="GET", body=None, host="127.0.0.1"):
    request = urllib.request.Request(f"http://{host}:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_master_is_a_coordinator(number):
    program = Program("master", "--rpc_port=0", "-metrics_port", "0", "--eviction_ratio=0.1")
    address, http = program.said.removeprefix("mooncake_master: ").split(", HTTP at ")
    assert address.startswith("127.0.0.1:")
    assert asked(int(http), "/nothing")[0] == 404
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", 32 << 20, 0, "tcp", "", address) == 0
    assert store.put("k", b"v") == 0
    segments = asked(int(http), "/get_all_segments")[1].decode().split()
    assert segments == [store.get_hostname()]
    assert store.close() == 0
    code, said = program.end(number)
    assert code == 0
    assert "--eviction_ratio is ignored" in said and "listening on 127.0.0.1" in said


# What the original answers (0.3.13, one master).
STATES = {
    "/health": b'{"status":"ok","role":"leader","ha_state":"serving","service_ready":true,"leader_address":null,"view_version":null}',
    "/role": b"leader",
    "/ha_status": b"serving",
    "/leader": b'{"present":false,"leader_address":null,"view_version":null}',
}


def test_a_master_tells_of_objects():
    program = Program("master", "--rpc_port=0", "--metrics_port=0")
    address, http = program.said.removeprefix("mooncake_master: ").split(", HTTP at ")

    def told(path):
        status, said = asked(int(http), path)
        return status, json.loads(said)

    for path, said in STATES.items():
        assert asked(int(http), path) == (200, said)
    assert asked(int(http), "/get_all_keys")[0] == 503, "nobody is a member yet"
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", 32 << 20, 0, "tcp", "", address) == 0
    assert asked(int(http), "/get_all_keys") == (200, b"")
    keys = ["a", "b/c", "with space", "plus+,comma", "ü"]
    for length, key in enumerate(keys, 1):
        assert store.put(key, bytes(length)) == 0
    status, listed = asked(int(http), "/get_all_keys")
    assert (status, sorted(listed.decode().splitlines())) == (200, sorted(keys))

    def copies(size):
        place = {"buffer_address_": 0, "protocol_": "tcp", "transport_endpoint_": store.get_hostname()}
        return [{"size_": size, **place}]

    none = {"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}
    for query, size in [
        ("?key=a", 1),
        ("?x=1&key=b/c", 2),
        ("?key=with%20space", 3),
        ("?key=plus+,comma", 4),
        ("?key=%C3%BC", 5),
    ]:
        assert told(f"/query_key{query}") == (200, {"success": True, "data": copies(size)}), query
    for query in ["", "?key=", "?key=none", "?key=%FF", f"?key={'k' * 5000}"]:
        assert told(f"/query_key{query}") == (404, none), query

    def of_several(size):
        others = dict.fromkeys(["disk_values", "local_disk_values", "nof_values"])
        error = None if size else "OBJECT_NOT_FOUND"
        return {"ok": size is not None, "error": error, "values": size and copies(size), **others}

    found = {"a": of_several(1), "none": of_several(None), "plus+,comma": of_several(4), "\ufffd": of_several(None)}
    asks = "/batch_query_keys?keys=a,none,,plus+%2Ccomma,%FF"
    assert told(asks) == (200, {"success": True, "data": found})
    for query in ["", "?keys=", "?keys=,", "?key=a"]:
        error = "No keys provided. Use ?keys=key1,key2,..."
        assert told(f"/batch_query_keys{query}") == (400, {"success": False, "error": error})
    store.close()
    assert program.end()[0] == 0


def test_a_master_knows_quotas():
    program = Program("master", "--rpc_port=0", "--metrics_port=0", "--metrics_host=127.0.0.1")
    address, http = program.said.removeprefix("mooncake_master: ").split(", HTTP at ")

    def quota(method="GET", query="", body=None, path="/api/v1/tenant_quotas"):
        status, said = asked(int(http), path + query, method, body)
        return status, json.loads(said) if said.startswith(b"{") else said

    status, said = quota()
    assert (status, said["error_code"]) == (503, -900), "nobody is a member yet"
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "", 32 << 20, 0, "tcp", "", address, None, False, "", "a") == 0
    assert quota() == (200, {"success": True, "data": []})
    told = {
        "tenant_id": "a",
        "requested_quota_bytes": 1 << 20,
        "effective_quota_bytes": 1 << 20,
        "charged_bytes": 0,
        "admission_closed": False,
        "over_quota": False,
        "has_explicit_policy": True,
    }
    body = b'{"requested_quota_bytes":1048576}'
    assert quota("PUT", "?tenant_id=a", body) == (200, {"success": True, "data": told})
    for _ in range(500):
        if quota()[1]["data"]:
            break
        time.sleep(0.01)
    for number in range(100):
        assert store.put(f"k{number}", bytes(20_000)) == 0
    (found,) = quota()[1]["data"]
    assert 1 << 19 < found["charged_bytes"] <= 1 << 20
    assert quota("GET", "?tenant_id=a") == (200, {"success": True, "data": found})

    for query, wrong, why in [
        ("", body, "Missing or invalid tenant_id"),
        ("?tenant_id=" + "n" * 65, body, "Missing or invalid tenant_id"),
        ("?tenant_id=a", b'{"requested_quota_bytes":0}', "Tenant quota must be in [1, 2^63 - 1] bytes"),
        ("?tenant_id=a", b'{"requested_quota_bytes":true}', "Tenant quota must be in [1, 2^63 - 1] bytes"),
        ("?tenant_id=a", b"[]", "Tenant quota must be in [1, 2^63 - 1] bytes"),
    ]:
        refused = {"success": False, "error_code": -600, "error_message": why}
        assert quota("PUT", query, wrong) == (400, refused)
    assert quota("PUT", "?tenant_id=a", b"x")[0] == 400
    assert quota("PUT", "?tenant_id=a", bytes(64 * 1024 + 1))[0] == 413
    assert quota("PUT", "", b"{}", "/nothing")[0] == 404
    unknown = 404, {"success": False, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"}
    assert quota("GET", "?tenant_id=b") == quota("DELETE", "?tenant_id=b") == unknown
    assert quota("DELETE", "?tenant_id=a") == (200, {"success": True, "data": None})
    store.close()
    assert program.end()[0] == 0


def own_address():
    """An address of this host that is not loopback, if it has one: nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        try:
            towards.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return towards.getsockname()[0]


def test_a_master_takes_quotas_from_its_own_host_only(tmp_path):
    host = own_address()
    if host is None:
        pytest.skip("this host has no address but loopback")
    secret = tmp_path / "secret"
    secret.write_bytes(b"c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I=\n")
    secret.chmod(0o600)
    program = Program("master", "--rpc_port=0", "--metrics_port=0", f"--secret_file={secret}")
    port = int(program.said.rpartition(" ")[2])
    path, body = "/api/v1/tenant_quotas?tenant_id=a", b'{"requested_quota_bytes":1}'
    assert asked(port, "/health", host=host) == (200, STATES["/health"])
    for path_of_objects in ["/get_all_keys", "/query_key?key=a", "/batch_query_keys?keys=a"]:
        assert asked(port, path_of_objects, host=host)[0] == 403
        assert asked(port, path_of_objects)[0] == 503, "nobody is a member yet"
    for method in ["PUT", "DELETE"]:
        assert asked(port, path, method, body, host)[0] == 403
        assert asked(port, path, method, body)[0] == 503, "nobody is a member yet"
    assert program.end()[0] == 0


class Client:
    """A `mooncake_client`, and a store that asks it."""

    def __init__(self, coordinator, *flags):
        given = ["--master_server_address", coordinator.address, "--port=0", "--host=127.0.0.1", *flags]
        self.program = Program("client", *given)
        said = self.program.said.removeprefix("mooncake_client: ").strip()
        self.address, _, self.http = said.partition(", HTTP at ")
        self.store = MooncakeDistributedStore()

    def setup(self, pool_bytes=1 << 20):
        return self.store.setup_dummy(pool_bytes, 0, self.address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_lends_memory_to_those_who_lend_none(coordinator, number):
    client = Client(coordinator, "--global_segment_size=64MB", "-enable_http_server", "--http_port", "0", "--color=blue")
    assert asked(int(client.http), "/health") == (200, b"OK")
    assert asked(int(client.http), "/metrics")[0] == 404
    store = client.store
    assert client.setup(3 << 20) == 0 and client.setup() == 0
    assert store.health_check() == 0
    at = store.alloc_from_mem_pool(1 << 20)
    into = store.alloc_from_mem_pool(2 << 20)
    assert at and into and store.alloc_from_mem_pool(1) == 0 and store.alloc_from_mem_pool(0) == 0
    ctypes.memmove(at, bytes(range(256)) * 4096, 1 << 20)
    assert store.register_buffer(at, 1 << 20) == store.register_buffer(into, 2 << 20) == 0
    assert store.put_from("block", at, 1 << 20) == 0
    assert store.get_into("block", into, 2 << 20) == 1 << 20
    assert ctypes.string_at(into, 1 << 20) == bytes(range(256)) * 4096
    (replica,) = store.get_replica_desc("block")
    assert replica.get_memory_descriptor().buffer_descriptor.transport_endpoint == client.address
    assert store.close() == 0
    assert store.alloc_from_mem_pool(1) == 0
    ctypes.memset(into, 0, 2 << 20)
    code, said = client.program.end(number)
    assert code == 0
    assert "--color is ignored" in said and "threads" not in said


def test_a_client_has_a_drive(coordinator, tmp_path, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(tmp_path))
    monkeypatch.setenv("LUNETTE_DRIVE_SIZE", "64MB")
    client = Client(coordinator, "--global_segment_size", "64MB", "--enable_offload=true")
    assert [file.stat().st_size > 0 for file in tmp_path.iterdir()] == [True]
    assert client.setup() == 0
    assert client.store.put("k", b"v") == 0 and client.store.get("k") == b"v"
    client.store.close()
    assert client.program.end()[0] == 0


def test_who_asks_a_client_that_is_not_there_is_told_so():
    store = MooncakeDistributedStore()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert store.setup_dummy(0, 0, f"127.0.0.1:{port}") != 0
    assert store.setup_dummy(0, 0, "no such host:1") == -600
    assert store.is_exist("k") == -1 and store.alloc_from_mem_pool(0) == 0
    with pytest.raises(TypeError):
        store.setup_dummy(-1, 0, "127.0.0.1:1")
    with pytest.raises(TypeError):
        store.setup_dummy(0, 0, 1)


def test_where_a_client_is_reached(coordinator):
    assert address_towards(coordinator.address) == "127.0.0.1"


def test_the_example_runs(coordinator):
    example = Path(__file__).parent.parent / "examples/put_get.py"
    command = [sys.executable, str(example), coordinator.address]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "a block of a KV cache\n"), ran.stderr


def test_flags_that_make_no_sense_are_refused():
    wrong = {
        "master": (["--rpc_port"], ["rpc_port=1"], ["--rpc_port=many"]),
        "client": (["--global_segment_size=0"], ["--global_segment_size=much"], ["--tenant_id=a"], ["--port"]),
    }
    for name, flags in ((name, flags) for name in wrong for flags in wrong[name]):
        program = Program(name, *flags)
        assert program.process.wait(20) == 1
        assert program.process.stderr.read().splitlines()[-1].startswith(f"mooncake_{name}: ")


def test_metadata_is_kept():
    program = Program("http_metadata_server", "--host", "127.0.0.1", "--port", "0")
    port = int(program.said.rpartition(":")[2])
    path = "/metadata?key=mooncake%2Fram%2Fnode"
    assert asked(port, path)[0] == 404
    assert asked(port, path, "PUT", b'{"a":1}')[0] == 200
    assert asked(port, path) == (200, b'{"a":1}')
    assert asked(port, path, "DELETE")[0] == 200
    assert asked(port, path, "DELETE")[0] == 404
    assert asked(port, "/metadata")[0] == 400
    assert asked(port, "/metadata?key=" + "k" * KEY_BYTES_MAX, "PUT", b"1")[0] == 200
    assert asked(port, "/metadata?key=" + "k" * (KEY_BYTES_MAX + 1), "PUT", b"1")[0] == 400
    assert asked(port, path, "PUT", bytes(RECORD_BYTES_MAX))[0] == 200
    head = f"PUT {path} HTTP/1.1\r\nContent-Length: {RECORD_BYTES_MAX + 1}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 20) as longer:
        longer.sendall(head.encode())
        assert b" 413 " in longer.recv(1000)
    assert asked(port, "/other?key=a")[0] == 404
    assert program.end()[0] == 0


def test_records_have_a_bound():
    records = Records()
    assert all(records.put(str(n), b"") for n in range(RECORDS_MAX))
    assert not records.put("one more", b"")
    assert records.put("0", b"another") and records.get("0") == b"another"
    assert records.delete("0") and records.put("one more", b"")
