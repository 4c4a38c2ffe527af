#!/usr/bin/env bash
# Usage: tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]
# Several machines: set NNODES, NODE_RANK and MASTER_ADDR on each.

if [ $# -lt 3 ]; then
    echo "Usage: $0 CONFIG CHECKPOINT GPUS [arguments of tools/test.py]" >&2
    exit 2
fi

CONFIG=$1
CHECKPOINT=$2
GPUS=$3

python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/test.py" \
    "$CONFIG" \
    "$CHECKPOINT" \
    --launcher pytorch "${@:4}"
