"""llama.cpp's own server, from the package xllamacpp. `python llama_cpp_server.py MODEL.gguf` prints its URL, and serves until
SIGTERM."""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main() -> None:
    """One thread, two slots, the metrics page on."""
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.endpoint_metrics = True
    params.port = 0
    params.n_ctx = 2048
    params.n_parallel = 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
