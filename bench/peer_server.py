#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peer_server.py --model FILE --port N [...] - llama.cpp's server out of the package xllamacpp, in the foreground until SIGTERM.

Run by the Python that bench/peers made. Nothing is tuned for or against it but this: finished prompts are not copied into memory, since
the benchmarks never send one twice. --context is per sequence, as troika's is; llama.cpp's own is the sum over all.
"""
import argparse
import importlib.metadata
import os
import re
import signal
import sys
import threading

import xllamacpp


def label():
    """Name, version, and the instruction sets that this build uses: a wheel is not built for the machine it runs on."""
    flags = re.findall(r"\b(AVX2|AVX512\w*|AVX_VNNI|AMX_INT8|NEON|DOTPROD|SVE)\s*=\s*1", xllamacpp.get_system_info())
    return f"xllamacpp {importlib.metadata.version('xllamacpp')} ({' '.join(flags) or 'no vector extension'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    options = parser.parse_args()
    if options.version:
        print(label())
        return 0
    if not options.model or not options.port:
        parser.error("--model and --port are needed")
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.context * options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads or len(os.sched_getaffinity(0))
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while not ended.wait(0.5):
        pass
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main())
