"""A bundle behind HTTP, with the standard library: right first, one generation at a time."""

import itertools
import json
import logging
import math
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from ms_export.__about__ import __version__
from ms_export.errors import ExportError, MissingExtraError, PromptError
from ms_export.runtime import Runtime
from ms_export.text import TextPiece

_LOG = logging.getLogger(__name__)
_LARGEST_BODY = 4 << 20
_OPTIONS = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
}
_KEYS = {"prompt", "prompt_ids", "stop", "stream", "model", *_OPTIONS}


class BundleServer(ThreadingHTTPServer):
    """`POST /v1/completions` and `GET /health` over one Runtime.

    Requests wait for one another at a lock, so a long generation delays the next one and never mixes with it.
    """

    daemon_threads = False  # closing waits for answers under way
    block_on_close = True
    request_queue_size = 128

    def __init__(self, runtime: Runtime, host: str = "127.0.0.1", port: int = 0) -> None:
        """Binds the address; port 0 takes a free one (`server_port` tells which)."""
        super().__init__((host, port), _Handler)
        self.runtime = runtime
        self.generation_lock = threading.Lock()
        self.idle: set[socket.socket] = set()
        self.is_stopping = False

    def serve_until_signal(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until SIGTERM or SIGINT, then finishes what is under way and closes. For the main thread."""
        ended = threading.Event()
        old = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        loop = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, name="http")
        loop.start()
        try:
            on_ready()
            while not ended.wait(timeout=1):  # a timeout, or Python would not run the signal handler
                pass
        finally:
            self.is_stopping = True
            self.shutdown()
            loop.join()
            for connection in list(self.idle):  # or a client that only keeps its connection open delays the end
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            self.server_close()
            for number, handler in old.items():
                signal.signal(number, handler)


class _RefusalError(Exception):
    """An answer that is an error: status and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: BundleServer
    protocol_version = "HTTP/1.1"
    server_version = f"ms-export/{__version__}"
    timeout: ClassVar[float] = 60  # seconds without a byte from the client
    _is_begun = False

    def handle_one_request(self) -> None:
        """Waits for a request and answers it; while it waits, the server may hang up."""
        self._is_begun = False
        self.server.idle.add(self.connection)
        try:
            if self.server.is_stopping:  # asked after adding, so the server either sees us or we see it
                self.close_connection = True
                return
            super().handle_one_request()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the client has gone; the lanes of its prompt are free again
        finally:
            self.server.idle.discard(self.connection)

    def do_GET(self) -> None:
        """Answers `/health`."""
        self.server.idle.discard(self.connection)
        if self.path != "/health":
            self._refuse(404, f"no such path: {self.path}; known: GET /health, POST /v1/completions")
            return
        bundle = self.server.runtime.bundle
        answer = {"status": "ok", "model": self.server.runtime.folder.name, "vocab_size": bundle.vocab_size}
        answer |= {"longest_prompt": self.server.runtime.longest_prompt, "max_length": bundle.cache.max_length}
        self._answer(200, answer)

    def do_POST(self) -> None:
        """Answers `/v1/completions`."""
        self.server.idle.discard(self.connection)
        try:
            body = self._read_body()
            if self.path != "/v1/completions":
                raise _RefusalError(404, f"no such path: {self.path}; known: GET /health, POST /v1/completions")
            request = _parse(body)
            with self.server.generation_lock:
                self._complete(request)
        except _RefusalError as error:
            self._refuse(error.status, str(error))
        except PromptError as error:
            self._refuse(400, str(error))
        except MissingExtraError as error:
            self._refuse(501, str(error))
        except (ExportError, RuntimeError, ValueError, TypeError) as error:
            _LOG.exception("a request failed")
            self._refuse(500, f"{type(error).__name__}: {error}".splitlines()[0])

    def log_message(self, format: str, *args: Any) -> None:
        _LOG.info("%s " + format, self.address_string(), *args)

    def _read_body(self) -> bytes:
        text = self.headers.get("Content-Length", "")
        if not text.isascii() or not text.isdigit():
            self.close_connection = True
            raise _RefusalError(411, "Content-Length: expected the number of bytes of the body")
        if int(text) > _LARGEST_BODY:
            self.close_connection = True
            raise _RefusalError(413, f"body: {text} bytes, at most {_LARGEST_BODY} are taken")
        return self.rfile.read(int(text))

    def _complete(self, request: Mapping[str, Any]) -> None:
        runtime = self.server.runtime
        options = {ours: request[theirs] for theirs, ours in _OPTIONS.items() if request.get(theirs) is not None}
        pieces, num_prompt_ids = _start(runtime, request, options)
        head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": runtime.folder.name,
        }
        text, ids, reason = "", [], None
        with closing(pieces):
            if request.get("stream"):
                self._stream(head, pieces)
                return
            for piece in pieces:
                text += piece.text
                ids += [] if piece.id is None else [piece.id]
                reason = piece.finish_reason
        usage = {
            "prompt_tokens": num_prompt_ids, "completion_tokens": len(ids), "total_tokens": num_prompt_ids + len(ids),
        }  # fmt: skip
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": reason}
        self._answer(200, {**head, "choices": [choice], "usage": usage})

    def _stream(self, head: Mapping[str, Any], pieces: Generator[TextPiece, None, None]) -> None:
        """Server-sent events, one per id, closed by `data: [DONE]`."""
        first = next(pieces)  # an error before it can still be an error's status
        self._is_begun = True
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in itertools.chain([first], pieces):
            ids = [] if piece.id is None else [piece.id]
            choice = {"index": 0, "text": piece.text, "token_ids": ids, "finish_reason": piece.finish_reason}
            self.wfile.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def _refuse(self, status: int, message: str) -> None:
        if self._is_begun:  # half an answer is out; ending it early is all that is left
            self.close_connection = True
            return
        self._answer(status, {"error": {"message": message, "code": status}})

    def _answer(self, status: int, content: Mapping[str, Any]) -> None:
        data = json.dumps(content, allow_nan=False).encode() + b"\n"
        self._is_begun = True
        if self.server.is_stopping:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _RefusalError(400, f"body: not JSON in UTF-8: {error}") from error
    if not isinstance(request, dict):
        raise _RefusalError(400, f"body: expected a JSON object, found {type(request).__name__}")
    if unknown := sorted(set(request) - _KEYS):
        raise _RefusalError(400, f"{unknown[0]}: unknown key; known: {', '.join(sorted(_KEYS))}")
    if ("prompt" in request) == ("prompt_ids" in request):
        raise _RefusalError(400, "expected either prompt (text) or prompt_ids (a list of ids)")
    if not isinstance(request.get("stream", False), bool):
        raise _RefusalError(400, f"stream: expected true or false, found {request['stream']!r}")
    if any(isinstance(value, float) and not math.isfinite(value) for value in request.values()):
        raise _RefusalError(400, "body: NaN and Infinity are no JSON")
    return request


def _start(
    runtime: Runtime, request: Mapping[str, Any], options: dict[str, Any]
) -> tuple[Generator[TextPiece, None, None], int]:
    stop = request.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise PromptError(f"stop: expected a string or a list of strings, found {stop!r}")
    if "prompt" in request:
        ids = runtime.vocabulary.encode(request["prompt"])
        return runtime.continue_text([ids], stop=stop, **options), len(ids)
    if not isinstance(request["prompt_ids"], list):
        raise PromptError(f"prompt_ids: expected a list of ids, found {request['prompt_ids']!r}")
    ids = request["prompt_ids"]
    if runtime.has_vocabulary:
        return runtime.continue_text([ids], stop=stop, **options), len(ids)
    if stop:
        raise PromptError("stop: the bundle cannot turn ids into text, so it cannot look for strings")
    tokens = runtime.stream([ids], **options)
    return (TextPiece(prompt=0, text="", id=t.id, finish_reason=t.finish_reason) for t in tokens), len(ids)
