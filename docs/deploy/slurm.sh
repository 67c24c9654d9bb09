#!/bin/bash
#SBATCH --job-name=vitlab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append

# sbatch docs/deploy/slurm.sh train --data /shared/imagenet --out /shared/runs/a --set model=vit_b16
#
# SIGTERM comes 120 seconds before the time limit: all processes save at the same step and end. The
# job is queued again with the same command, which continues the run, on any number of nodes. A job
# that fails within its first minute is not queued again: that is most likely a mistake in the command.

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
  --nnodes "$SLURM_NNODES" \
  --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$first:29500" \
  --shutdown-timeout 100 \
  -m vitlab "$@"
code=$?
if [ "$code" -ne 0 ] && [ "$SECONDS" -ge 60 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
