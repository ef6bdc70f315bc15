#!/usr/bin/env bash
# A real vLLM held against the engine here, with the bundled pair: greedy texts against vanilla decoding, accepted tokens
# against sps (draft model, 5 tokens) and pld-vllm (n-grams), and accuracy next to theirs, with a report of each run.
# Linux on x86-64. vLLM gets a virtual environment of its own in build/server (0.9 GB to download, 3.3 GB on the disk); its
# wheel is pinned by a hash, what it depends on is not. An installation that was stopped goes on: what was downloaded is
# kept. Then half an hour, measured where 14 other processes shared the two cores.
# DOCUMENTS=30 of each task; PORT=8000. Exit code 1 if anything is not as here. Findings are in
# build/server/servers-vllm.json, logs, audits, runs and reports next to it.
set -eu
. "$(dirname "$0")/common.sh"
folder=build/server
bin=$PWD/$folder/venv/bin
port=${PORT:-8000}
documents=${DOCUMENTS:-30}
status=0

# torch's build for CPUs is where pip is set up to find it. The rest is installed by uv, which keeps every file that it
# has downloaded and shows the large ones.
install_server() {
  local pip="$bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps"
  local uv="$bin/uv pip"
  echo "vLLM is installed into $folder/venv; if this is stopped, make server-test goes on"
  "$bin/python" -m pip --version > /dev/null 2>&1 || python -m venv $folder/venv
  $pip -r tools/supply/uv.txt
  echo "1 of 3: torch for CPUs"
  $pip -r tools/supply/torch-cpu.txt
  echo "2 of 3: vLLM's own wheel"
  $uv install --python "$bin/python" --require-hashes --no-deps -r tools/supply/server.txt
  echo "3 of 3: what it depends on"
  $uv install --python "$bin/python" -r tools/supply/server.txt
  # They are built for another torch.
  $uv uninstall --quiet --python "$bin/python" torchvision torchaudio torchcodec
  # Its command asks for the version of a package called vllm.
  local stub
  stub=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
  mkdir -p "$stub"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$stub/METADATA"
  $uv freeze --quiet --python "$bin/python" > $folder/packages.txt
  touch $folder/installed
}

# answers: whether the server does.
answers() {
  python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/v1/models', timeout=5)" 2> /dev/null
}

# start NAME ARGUMENTS...: a server with a method, whose process is then $server.
start() {
  local name=$1 command
  shift
  command=$(specbench serve-recipe vllm --pair pocket "$@" | grep -v '^#')
  echo "$name: starting vLLM; its log is $folder/$name.log"
  PATH="$bin:$PATH" bash -c "exec $command --port $port --enforce-eager --max-model-len 512 --max-num-seqs 4" \
    > $folder/"$name".log 2>&1 &
  server=$!
  for _ in $(seq 600); do
    if answers; then return; fi
    kill -0 $server 2> /dev/null || break
    sleep 1
  done
  tail -n 20 $folder/"$name".log
  echo "$name: vLLM does not answer"
  exit 1
}

stop() {
  kill $server
  wait $server || true
  server=
}

# hold NAME ARGUMENTS...: start a server with a method, audit it, run it next to that method, and end it.
hold() {
  local name=$1
  shift
  local words=(--pair pocket "$@" --task pocket_gsm8k --task pocket_math500)
  rm -rf ${folder:?}/"$name" $folder/"$name".json
  start "$name" "$@"
  specbench audit --server "http://127.0.0.1:$port" "${words[@]}" --documents "$documents" --length 256 \
    --out $folder/"$name".json || status=1
  specbench run --server "vllm=http://127.0.0.1:$port" "${words[@]}" --limit "$documents" --out $folder/"$name" || status=1
  stop
  specbench report $folder/"$name" --out $folder/"$name".html
}

server=
trap '[ -z "$server" ] || kill $server' EXIT
export UV_CACHE_DIR=$PWD/$folder/cache UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind NUMBA_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
if answers; then echo "port $port is in use; choose another: PORT=8001 make server-test"; exit 1; fi
mkdir -p $folder
make_once $folder/installed install_server
hold draft-model --method sps --set sps.gamma=5
hold ngram --method pld-vllm
python tools/recipes/server_findings.py $folder || status=1
exit $status
