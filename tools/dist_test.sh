#!/usr/bin/env bash
# Test in several processes: tools/dist_test.sh CONFIG CHECKPOINT GPUS [flags of test.py]
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each. Without a GPU, GPUS is the
# number of processes, which talk over gloo.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: [NNODES= NODE_RANK= MASTER_ADDR= PORT=] $0 CONFIG CHECKPOINT GPUS" \
        "[flags of test.py]" >&2
    exit 2
fi
HERE=$(dirname "$0")
PORT="${PORT:-29500}"

if ! [[ "$3" =~ ^[1-9][0-9]*$ ]]; then
    echo "$0: GPUS must be a number of at least 1, not '$3'" >&2
    exit 2
fi
if [ "${NODE_RANK:-0}" = 0 ] && (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
    echo "$0: the port $PORT is in use, by another training perhaps; choose one: PORT=29501 $0 ..." >&2
    exit 1
fi

# The same as `torchrun`, of whichever environment PYTHON is.
PYTHONPATH="$HERE/..:${PYTHONPATH:-}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="$PORT" \
    --nproc_per_node="$3" \
    "$HERE/test.py" "$1" "$2" --launcher pytorch "${@:4}"
