import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest


@pytest.fixture(scope="module")
def address(text_bundle):
    """A real server process; it must end by SIGTERM in order."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ms_export.cli", "serve", str(text_bundle), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0]
        host, port = re.search(r"//([\d.]+):(\d+)", line).groups()
        with socket.create_connection((host, int(port))):  # a client that never asks may not delay the end
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        assert process.stdout.read().strip() == "stopped"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _post(address, body, path="/v1/completions"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def _choice(address, **body):
    status, answer = _post(address, body)
    assert status == 200, answer
    return json.loads(answer)["choices"][0]


def test_health_tells_the_limits(address):
    with urllib.request.urlopen(address + "/health", timeout=60) as answer:
        health = json.loads(answer.read())

    assert health == {"status": "ok", "model": "toy-text", "vocab_size": 64, "longest_prompt": 12, "max_length": 16}


def test_a_completion_equals_the_runtime(address, text_runtime):
    status, answer = _post(address, {"prompt": "w5 w3 w8", "max_tokens": 5, "temperature": 0.9, "seed": 4})

    expected = text_runtime.generate([[5, 3, 8]], max_new_tokens=5, temperature=0.9, seed=4)[0]
    answer = json.loads(answer)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == expected.ids
    assert answer["choices"][0]["finish_reason"] == expected.finish_reason
    assert answer["choices"][0]["text"].split() == [f"w{i}" for i in expected.ids]
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": len(expected.ids), "total_tokens": 3 + len(expected.ids),
    }  # fmt: skip


def test_ids_and_text_are_the_same_prompt(address):
    assert _choice(address, prompt="w5 w3", max_tokens=4) == _choice(address, prompt_ids=[5, 3], max_tokens=4)


def test_requests_at_once_do_not_mix(address):
    prompts = ["w5 w3", "w7", "w9 w9 w9", "w1 w2"]
    alone = [_choice(address, prompt=p, max_tokens=8) for p in prompts]
    found = {}

    def ask(n):
        found[n] = _choice(address, prompt=prompts[n % 4], max_tokens=8)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {n: alone[n % 4] for n in range(12)}


def test_a_stop_string_ends_the_text(address):
    whole = _choice(address, prompt="w7", max_tokens=6)["text"].split()
    assert len(whole) > 2

    stopped = _choice(address, prompt="w7", max_tokens=6, stop=whole[2])

    assert stopped["text"].split() == whole[:2]
    assert stopped["finish_reason"] == "stop"


def test_a_stream_is_the_same_text_in_pieces(address):
    whole = _choice(address, prompt="w5 w3", max_tokens=5)

    status, answer = _post(address, {"prompt": "w5 w3", "max_tokens": 5, "stream": True})

    *events, done = [line.removeprefix("data: ") for line in answer.decode().split("\n\n") if line]
    choices = [json.loads(event)["choices"][0] for event in events]
    assert status == 200
    assert done == "[DONE]"
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_a_client_that_leaves_in_the_middle_of_a_stream_takes_no_slot_along(address):
    host, port = re.search(r"//([\d.]+):(\d+)", address).groups()
    body = json.dumps({"prompt": "w5", "max_tokens": 12, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(5):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head + body)

    assert _choice(address, prompt="w5", max_tokens=2)["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "expected a JSON object, found list"),
        ({}, "either prompt (text) or prompt_ids"),
        ({"prompt": "w1", "prompt_ids": [1]}, "either prompt (text) or prompt_ids"),
        ({"prompt": 5}, "prompt: expected text"),
        ({"prompt": ""}, "is empty"),
        ({"prompt": " ".join(["w1"] * 13)}, "13 ids"),
        ({"prompt_ids": "1,2"}, "prompt_ids: expected a list of ids"),
        ({"prompt_ids": [64]}, "id 64 is outside the vocabulary"),
        ({"prompt_ids": [1.5]}, "expected whole numbers"),
        ({"prompt_ids": [[1], [2, 3]]}, "expected one row of ids"),
        ({"prompt": "w1", "max_tokens": 0}, "max_new_tokens: expected a whole number from 1"),
        ({"prompt": "w1", "temperature": "hot"}, "temperature"),
        ({"prompt": "w1", "top_p": 0}, "top_p"),
        ({"prompt": "w1", "seed": -1}, "seed"),
        ({"prompt": "w1", "stop": 5}, "stop"),
        ({"prompt": "w1", "stop": [""]}, "stop"),
        ({"prompt": "w1", "stream": 1}, "stream: expected true or false"),
        ({"prompt": "w1", "tempreature": 1}, "tempreature: unknown key"),
        (b'{"prompt": "w1", "temperature": NaN}', "NaN"),
    ],
)
def test_a_wrong_request_gets_400_and_one_line(address, body, named):
    status, answer = _post(address, body)

    message = json.loads(answer)["error"]["message"]
    assert status == 400
    assert named in message
    assert "\n" not in message


def test_another_path_gets_404(address):
    assert _post(address, {"prompt": "w1"}, path="/v2")[0] == 404
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(address + "/metrics", timeout=60)
    with error.value:
        assert error.value.code == 404


@pytest.mark.parametrize(("length", "status"), [("-5", 411), ("many", 411), ("99999999999", 413)])
def test_a_body_of_impossible_length_is_refused_unread(address, length, status):
    host, port = re.search(r"//([\d.]+):(\d+)", address).groups()
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        answer = client.makefile("rb").read()

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_port_in_use_is_named(text_bundle, address):
    from click.testing import CliRunner
    from ms_export.cli import main

    port = address.rpartition(":")[2]

    result = CliRunner().invoke(main, ["serve", str(text_bundle), "--port", port])

    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output
