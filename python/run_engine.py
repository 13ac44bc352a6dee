"""Starts the transformers engine: run_engine.py [REQUEST_FD ANSWER_FD [NUMBER]] (docs/engine-protocol.md).

NUMBER is this engine's among its supervisor's: it chooses one of several visible GPUs. Default 0.
Run by its path, so that this folder, and not the working directory, is where Python looks for modules first.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("the transformers engine needs Python 3.10 or newer, found " + sys.version.split()[0])

from forebay.engine.main import main

main(sys.argv[1:])
