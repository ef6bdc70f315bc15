# Shared by the recipes: where specbench is, and how to go on with a run that was stopped.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH="$PWD/.venv/bin:$PATH"
heads=pocket-work/heads

# run_into FOLDER ARGUMENTS...: a new run, or the rest of the one in FOLDER; nothing if it is finished.
run_into() {
  local folder=$1 again=()
  shift
  if [ -f "$folder/summary.parquet" ]; then return; fi
  if [[ " $* " == *" --allow-code-execution "* ]]; then again=(--allow-code-execution); fi  # no run grants it itself
  if [ -f "$folder/manifest.json" ]; then
    specbench run --resume "$folder" "${again[@]}"
  else
    specbench run "$@" --out "$folder"
  fi
}

# make_once FILE COMMAND...: run the command unless its FILE exists.
make_once() {
  local file=$1
  shift
  if [ -e "$file" ]; then return; fi
  mkdir -p "$(dirname "$file")"
  "$@"
}
