# Sourced by the scripts beside it: the checkout's root, thread counts and a Python environment.
#
#   prepare_environment EXTRAS   makes or updates .venv with these extras and puts it first in PATH
#   need_program NAME PACKAGE    installs a Debian package if no program NAME is found
#
# PYTHON=...            the interpreter to build the environment with (3.11 or newer)
# GRASP_TUNE_VENV=...   where the environment lives, if not in .venv of the checkout

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
export GRASP_TUNE_VENV="${GRASP_TUNE_VENV:-$ROOT/.venv}"

# The one place for thread counts. Work is parallel across cells, so one thread each is both the
# fastest and, because sums keep their order, the reproducible choice.
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1

say() { printf '%s\n' "$*" >&2; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        if new_enough "$PYTHON"; then
            echo "$PYTHON"
            return
        fi
        say "PYTHON is '$PYTHON', which is not a working Python 3.11 or newer"
        return 1
    fi
    # Tried by running: a launcher of that name may exist and still have no interpreter behind it.
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3.11 $0"
    return 1
}

# Succeeds if the packages are installed afterwards; elsewhere than as root on Debian it only tells.
install_packages() {
    if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
        return 1
    fi
    say "installing system packages: $*"
    local -x DEBIAN_FRONTEND=noninteractive
    local options=(-qq -o DPkg::Lock::Timeout=300)
    local log
    log="$(mktemp)"
    if { apt-get "${options[@]}" update &&
        apt-get "${options[@]}" install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

need_program() {
    local name="$1" package="$2"
    # Debian keeps PostgreSQL's server programs out of PATH.
    if command -v "$name" >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/$name" >/dev/null; then
        return 0
    fi
    install_packages "$package" ||
        say "note: '$name' is missing and the tests that use it will fail; install the package '$package'"
}

prepare_environment() {
    local python
    python="$(find_python)" || return
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian splits this off; the package is named after the interpreter's version.
        local package
        package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        if ! install_packages "$package"; then
            say "'$python' cannot make virtual environments; install the package '$package'"
            return 1
        fi
    fi
    "$python" "$ROOT/scripts/environment.py" "$GRASP_TUNE_VENV" "$1" || return
    export VIRTUAL_ENV="$GRASP_TUNE_VENV"
    export PATH="$GRASP_TUNE_VENV/bin:$PATH"
    unset PYTHONHOME
}
