#!/usr/bin/env bash
# Train in several processes: tools/dist_train.sh CONFIG GPUS [flags of train.py]
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT on each. Without a GPU, GPUS is the
# number of processes, which talk over gloo. With MAX_RESTARTS=N a run of which a process died is
# started again up to N times, and goes on from its newest checkpoint.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: [NNODES= NODE_RANK= MASTER_ADDR= PORT= MAX_RESTARTS=] $0 CONFIG GPUS [flags of train.py]" >&2
    exit 2
fi
HERE=$(dirname "$0")
PORT="${PORT:-29500}"

if ! [[ "$2" =~ ^[1-9][0-9]*$ ]]; then
    echo "$0: GPUS must be a number of at least 1, not '$2'" >&2
    exit 2
fi
if [ "${NODE_RANK:-0}" = 0 ] && (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
    echo "$0: the port $PORT is in use, by another training perhaps; choose one: PORT=29501 $0 ..." >&2
    exit 1
fi

# torchrun's --signals-to-handle, by the variable that a torch without this flag ignores: SIGUSR1 to
# torchrun would end it alone, and the processes train on.
export PET_SIGNALS_TO_HANDLE="${PET_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1}"

# The same as `torchrun`, of whichever environment PYTHON is.
PYTHONPATH="$HERE/..:${PYTHONPATH:-}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="$PORT" \
    --nproc_per_node="$2" \
    ${MAX_RESTARTS:+--max_restarts="$MAX_RESTARTS"} \
    "$HERE/train.py" "$1" --launcher pytorch "${@:3}"
