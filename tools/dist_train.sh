#!/usr/bin/env bash
# Usage: tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# Several machines: set NNODES, NODE_RANK and MASTER_ADDR on each.

if [ $# -lt 2 ]; then
    echo "Usage: $0 CONFIG GPUS [arguments of tools/train.py]" >&2
    exit 2
fi

CONFIG=$1
GPUS=$2

python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/train.py" \
    "$CONFIG" \
    --launcher pytorch "${@:3}"
