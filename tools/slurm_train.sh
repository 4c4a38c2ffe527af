#!/usr/bin/env bash
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of
# tools/train.py]. GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS are honoured.

if [ $# -lt 4 ]; then
    echo "Usage: $0 PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]" >&2
    exit 2
fi

set -x

PARTITION=$1
JOB_NAME=$2
CONFIG=$3
WORK_DIR=$4
GPUS_PER_NODE=${GPUS_PER_NODE:-8}

# shellcheck disable=SC2086  # SRUN_ARGS holds several arguments
srun -p "$PARTITION" \
    --job-name="$JOB_NAME" \
    --gres=gpu:"$GPUS_PER_NODE" \
    --ntasks="${GPUS:-8}" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    python -u "$(dirname "$0")/train.py" "$CONFIG" --work-dir="$WORK_DIR" \
    --launcher slurm "${@:5}"
