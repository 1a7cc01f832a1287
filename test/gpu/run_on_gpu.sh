#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The device check: the memory runtime's behaviour suites, the bandwidth of copies, and all workloads (right results,
# then a table of times), on a real CUDA device, in under 10 minutes. Needs a Python of at least 3.11 with numpy,
# ml_dtypes and cuda-python; nothing is installed or compiled there: test/gpu/prebuild.py makes the workloads before.
#
#   python test/gpu/prebuild.py FOLDER --chip sm_90                 # where the compiler is
#   WORKLOADS=FOLDER test/gpu/run_on_gpu.sh                         # where the GPU is; without WORKLOADS, no workloads
#   PYTHON=/path/to/python test/gpu/run_on_gpu.sh [--bytes N]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1
timeout --kill-after=5 120 "$python" -W always::ResourceWarning "$here/run_suites.py"
timeout --kill-after=5 60 "$python" "$here/bandwidth.py" "$@"
if [[ -n ${WORKLOADS:-} ]]; then
    timeout --kill-after=5 360 "$python" -W always::ResourceWarning "$here/device_check.py" "$WORKLOADS"
fi
