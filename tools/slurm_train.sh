#!/usr/bin/env bash
# Train under Slurm: tools/slurm_train.sh PARTITION JOB_NAME CONFIG [flags of train.py]
# GPUS in total, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS come from the environment. Processes that
# see no GPU talk over gloo. slurm_test.sh starts this with MMSEG_EXT_TOOL=test.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: [GPUS= GPUS_PER_NODE= CPUS_PER_TASK= SRUN_ARGS=] $0 PARTITION JOB_NAME CONFIG" \
        "[flags of train.py]" >&2
    exit 2
fi
HERE=$(dirname "$0")
GPUS_PER_NODE=${GPUS_PER_NODE:-4}

# SRUN_ARGS is a list of words: it is meant to be split.
# shellcheck disable=SC2086
PYTHONPATH="$HERE/..:${PYTHONPATH:-}" exec srun -p "$1" \
    --job-name="$2" \
    --gres=gpu:"$GPUS_PER_NODE" \
    --ntasks="${GPUS:-4}" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$HERE/${MMSEG_EXT_TOOL:-train}.py" --launcher slurm "${@:3}"
