#!/usr/bin/env bash
# Run a campaign through SLURM on a cluster of one node: this machine, over loopback.
#
#   lab/slurm_one_node.sh [FILE]
#
# Needs root and Debian's packages (apt-get install slurm-wlm munge). Sets up munge, slurmctld and
# slurmd in a folder of its own, runs the campaign (a tiny one of its own where no FILE is named)
# with `--slurm`, kills one worker job in the middle, prints what SLURM saw as JSON, and takes
# everything down again. docs/how-to/campaigns.md describes the results.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
work=$(mktemp -d -t kscout-slurm-XXXXXX)
n_cores=$(nproc)
memory_mb=$(awk '/MemTotal/ {print int($2 / 1024 * 0.8)}' /proc/meminfo)
pids=()

take_down() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [[ -n "${KEEP:-}" ]]; then echo "kept $work" >&2; else rm -rf "$work"; fi
}
trap take_down EXIT

for command in munged slurmctld slurmd sinfo; do
  command -v "$command" >/dev/null || { echo "no $command; apt-get install slurm-wlm munge" >&2; exit 1; }
done

mkdir -p "$work"/{munge,state,spool}
chmod 755 "$work"
chmod 700 "$work"/munge
dd if=/dev/urandom of="$work/munge/key" bs=128 count=1 status=none
chmod 400 "$work/munge/key"
cat > "$work/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=localhost
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$n_cores RealMemory=$memory_mb State=UNKNOWN
PartitionName=one Nodes=localhost Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf

munged --foreground --force --socket="$work/munge.socket" --key-file="$work/munge/key" \
  --pid-file="$work/munge/pid" --log-file="$work/munge/log" --seed-file="$work/munge/seed" &
pids+=($!)
sleep 1
slurmctld -D -c >"$work/slurmctld.out" 2>&1 & pids+=($!)
slurmd -D -N localhost >"$work/slurmd.out" 2>&1 & pids+=($!)
for _ in $(seq 60); do
  [[ "$(sinfo -h -o %T 2>/dev/null)" == idle ]] && break
  sleep 0.5
done
if [[ "$(sinfo -h -o %T)" != idle ]]; then
  echo "the node did not come up:" >&2
  sinfo -R >&2
  tail -n 5 "$work"/slurm*.log "$work"/slurm*.out >&2
  exit 1
fi

if [[ $# -gt 0 ]]; then
  file=$(realpath "$1")
else
  file=$work/tiny.toml
  cat > "$file" <<'TOML'
[grid]
horizons = ["short"]
reconstructions = ["zero-filled"]
methods = ["greedy", "ngreedy"]
gammas = [0.9]
seeds = [0, 1]
[stores.knee]
make = "knee"
volumes = [2, 1, 1]
slices = 4
size = 64
[horizons.short]
n_initial = 8
steps = 4
[training]
n_epochs = 4
batch_size = 4
n_trajectories = 4
keep_epochs = [1, 4]
[evaluation]
policies = ["random", "fixed", "oracle"]
trajectories = 2
fixed_slices = 8
[analyses]
curves = true
TOML
fi

cd "$work"
started=$(date +%s)
"$python" -m kscout campaign run "$file" --out "$work/campaign" --device cpu --workers 2 \
  --slurm partition=one --slurm cores=1 --slurm memory=2GB --slurm walltime=01:00:00 \
  --slurm interface=lo --json >"$work/outcome.json" 2>"$work/campaign.err" &
campaign=$!
pids+=("$campaign")
killed=none
for _ in $(seq 1200); do
  kill -0 "$campaign" 2>/dev/null || break
  if [[ "$killed" == none ]] && compgen -G "$work/campaign/policies/*/*/metrics.jsonl" >/dev/null; then
    killed=$(squeue -h -t R -o %i | head -n 1)
    scancel --signal=KILL "$killed"
  fi
  sleep 0.5
done
code=0
wait "$campaign" || code=$?
seconds=$(($(date +%s) - started))
cat "$work/campaign.err" >&2
again=$( { time -p "$python" -m kscout campaign run "$file" --out "$work/campaign" \
  --workers 0 --json >"$work/again.json"; } 2>&1 | awk '/real/ {print $2}')
"$python" - "$work" "$code" "$seconds" "$killed" "$again" "$(sinfo --version)" <<'PY'
import json, sys
from pathlib import Path

work, code, seconds, killed, again, version = sys.argv[1:]
outcome = json.loads(Path(work, "outcome.json").read_text() or "{}")
jobs = sorted(path.name for path in Path(work, "campaign", "slurm").glob("*"))
logs = [path.read_text() for path in Path(work, "campaign").rglob("log.txt")]
print(json.dumps({
    "slurm": version,
    "exit_code": int(code),
    "seconds": int(seconds),
    "killed_job": killed,
    "n_job_logs": len(jobs),
    "n_attempts": sum(log.count("\n== ") + log.startswith("== ") for log in logs),
    "outcome": outcome,
    "no_op_again_s": float(again),
    "again": json.loads(Path(work, "again.json").read_text()),
}, indent=2))
PY
exit "$code"
