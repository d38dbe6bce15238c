#!/usr/bin/env bash
# One run on several GPUs or machines:  examples/torchrun.sh RECIPE|SPEC [further options of `calattn train`]
#
# On each of two machines with 8 GPUs:  NODES=2 DEVICES=8 HEAD=first-machine:29500 examples/torchrun.sh my.yaml --out runs/a
# The folder must be one that all machines see. The batch of the spec is that of all GPUs together. If a process or a machine
# is lost, the others end within a minute, and the same command resumes.
set -euo pipefail
NODES=${NODES:-1} DEVICES=${DEVICES:-2} HEAD=${HEAD:-localhost:0}
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes "$NODES" --nproc-per-node "$DEVICES" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "${SLURM_JOB_ID:-calattn}" \
  -m calattn train "$@" --nodes "$NODES" --devices "$DEVICES"
