"""An agent that stood still (stopped, or its machine paused) takes its own absence for nobody's hang."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from aie_telemetry import api
from tests.e2e.programs import Start, engine_view, eventually, get

HUNG_AFTER_S = 5.0
# Slow, so that the agent is stopped while it waits for a page as good as always; and fast enough to be in time.
ANSWERS_AFTER_S = 0.6
ENGINE = f"""
import http.server, time

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep({ANSWERS_AFTER_S})
        body = b"# TYPE llamacpp:tokens_predicted_total counter\\nllamacpp:tokens_predicted_total 7\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


def findings(agent_url: str) -> list[str]:
    """Of the engine: a host that is short of something, as one that runs tests may be, is another matter."""
    status, body = get(f"{agent_url}/api/v1/findings")
    assert status == 200
    found = msgspec.json.decode(body, type=api.Findings).findings
    return [f"{each.cause}: {each.summary}" for each in found if each.subject == "chat"]


def test_a_stopped_agent_reports_no_hang(start: Start, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            port = int(engine.stdout.readline())
            config = tmp_path / "agent.toml"
            config.write_text(
                f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n'
                f'[discovery]\nenabled = false\n[findings]\nhung_after = "{HUNG_AFTER_S:g}s"\n'
                '[sources]\nscrape_period = "100ms"\nscrape_timeout = "1s"\n'
                f'[[engines]]\nname = "chat"\nmetrics_url = "http://127.0.0.1:{port}/metrics"\n'
            )
            agent = start("aie-agent", "run", "--no-bpf", "--config", str(config))
            url = agent.url()
            eventually(lambda: (view := engine_view(url, "chat")) is not None and view.state == "up", alive=agent)
            agent.process.send_signal(signal.SIGSTOP)
            time.sleep(2 * HUNG_AFTER_S)
            agent.process.send_signal(signal.SIGCONT)
            seen = []
            end = time.monotonic() + HUNG_AFTER_S
            while time.monotonic() < end:
                seen += findings(url)
                time.sleep(0.02)
            assert seen == []
            engine.send_signal(signal.SIGSTOP)
            eventually(lambda: findings(url), alive=agent)
        finally:
            engine.kill()
