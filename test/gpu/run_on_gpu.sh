#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run the memory runtime's behaviour suites and measure copies on a real CUDA device, in under 3 minutes.
# Needs a Python of at least 3.11 with numpy, ml_dtypes and cuda-python; nothing is installed or built.
#
#   test/gpu/run_on_gpu.sh                 # with python3
#   PYTHON=/path/to/python test/gpu/run_on_gpu.sh [--bytes N]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1
timeout --kill-after=5 120 "$python" -W always::ResourceWarning "$here/run_suites.py"
timeout --kill-after=5 60 "$python" "$here/bandwidth.py" "$@"
