#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# One task of deploy/slurm/lamina.sbatch: the node of its number, in the foreground.
#
# usage: srun node.sh ROLE PREFIX BIN CLUSTER COORDINATOR
set -euo pipefail
exec "$3/lamina-$1" --cluster "$4" --name "$2$SLURM_PROCID" --coordinator "$5"
