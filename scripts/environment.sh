# Sourced by the scripts: a virtual environment of the checkout's own, in .venv.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python="$root/.venv/bin/python"
export PATH="$root/.venv/bin:$PATH"

# make_environment EXTRAS: create .venv if it is missing, and install rlx with EXTRAS (such as
# "[dev]") in editable form, unless that was done already with this pyproject.toml.
make_environment() {
    local extras=$1 stamp="$root/.venv/installed-${1//[^a-z0-9]/-}"
    [ -x "$python" ] || python3 -m venv "$root/.venv"
    if ! cmp -s "$root/pyproject.toml" "$stamp"; then
        "$python" -m pip install --quiet --disable-pip-version-check --editable "$root$extras"
        cp "$root/pyproject.toml" "$stamp"
    fi
}

# run_mpi N COMMAND...: run COMMAND on N ranks, with the flags that mpirun needs here and no others.
run_mpi() {
    local ranks=$1 flags=()
    shift
    [ "$(id -u)" -ne 0 ] || flags+=(--allow-run-as-root)
    [ "$ranks" -le "$(nproc)" ] || flags+=(--oversubscribe)
    "$root/.venv/bin/mpirun" "${flags[@]}" -n "$ranks" "$@"
}
