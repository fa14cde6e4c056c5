#!/usr/bin/env bash
# Test under Slurm: tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [flags of test.py]
# The environment is that of tools/slurm_train.sh.
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "usage: [GPUS= GPUS_PER_NODE= CPUS_PER_TASK= SRUN_ARGS=] $0 PARTITION JOB_NAME CONFIG" \
        "CHECKPOINT [flags of test.py]" >&2
    exit 2
fi
MMSEG_EXT_TOOL=test exec "$(dirname "$0")/slurm_train.sh" "$@"
