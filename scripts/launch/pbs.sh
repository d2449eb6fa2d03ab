#!/usr/bin/env bash
# One job under PBS, over MPI: qsub -v JOB=job.toml scripts/launch/pbs.sh
#PBS -N rlx
#PBS -l select=2:ncpus=2:mpiprocs=2
#PBS -l walltime=01:00:00
set -euo pipefail
cd "$PBS_O_WORKDIR"
exec mpirun -n "$(wc -l < "$PBS_NODEFILE")" --hostfile "$PBS_NODEFILE" rlx train "$JOB"
