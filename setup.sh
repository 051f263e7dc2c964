#!/bin/bash
# Puts everything in place that flexo's make targets need, and nothing twice: setup.sh [lint|unit|slurm|all].
#
# The argument says what the caller is about to do, and so which steps are taken: PyTorch and Horovod are large. A step that
# fails stops only a caller who needs it: unit tests do without Slurm, which not everybody can install. What has been done is remembered in .venv/.setup, one file a step, by a hash of what the step
# depends on, so that an interrupted step is done again. The output of the steps is in build/setup.log.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly ROOT=$PWD
readonly VENV=$ROOT/.venv
readonly PYTHON=$VENV/bin/python
readonly STAMPS=$VENV/.setup
readonly LOG=$ROOT/build/setup.log
readonly HOROVOD_VERSION=0.28.1
readonly ORTOOLS_VERSION=9.15.6755
readonly PLAIN_INTERVAL_S=30 # how often a long step says that it is still there, where no terminal is

# Debian's package:the command or file by which it is known where something else provides it ("-": nothing does).
readonly PACKAGES=(
  python3:python3 python3-venv:- python3-dev:- gcc:gcc g++:g++ make:make cmake:cmake
  slurmctld:slurmctld slurmd:slurmd slurm-client:sbatch slurm-wlm-basic-plugins:slurmctld slurmdbd:slurmdbd
  slurm-wlm-mysql-plugin:slurmdbd libslurm-dev:/usr/include/slurm/spank.h munge:munged
  mariadb-server-core:mariadbd mariadb-client-core:mariadb lua5.1:lua5.1 procps:ps iproute2:ip etcd-server:etcd
  mmdebstrap:mmdebstrap
  prometheus:prometheus sudo:sudo openssl:openssl
  systemd-standalone-sysusers:systemd-sysusers systemd-standalone-tmpfiles:systemd-tmpfiles
)

# What the environment says about other Pythons, and the make that calls, must not decide what is installed here.
unset MAKEFLAGS MFLAGS MAKELEVEL
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_USER PIP_ROOT PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 LC_ALL=C.UTF-8
export PATH="$VENV/bin:${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
readonly CACHE=${FLEXO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flexo}

# --- telling what happens ----------------------------------------------------------------------------------------

step_number=0
step_count=0
child=''
failed=()
did_something=''
ok=''

on_terminal() { [[ -t 2 && ${TERM:-dumb} != dumb ]]; }
say() { printf '%s\n' "$*" >&2; }

# Waits for the process `child`, showing how long it takes.
watch_child() {
  local title=$1 started=$SECONDS next=$PLAIN_INTERVAL_S frames='-=~=' turn=0
  while kill -0 "$child" 2>/dev/null; do
    if on_terminal; then
      printf '\r[%d/%d] %s  %s %d s ' "$step_number" "$step_count" "$title" "${frames:turn++%4:1}" $((SECONDS - started)) >&2
      sleep 0.2
    else
      sleep 0.2
      if ((SECONDS - started >= next)); then
        say "[$step_number/$step_count] $title: still at it after $((SECONDS - started)) s"
        next=$((next + PLAIN_INTERVAL_S))
      fi
    fi
  done
}

# Runs a function as a process group of its own, so that Ctrl-C ends all that it started; its output goes to the log.
# Sets `ok` to "yes" or "". It returns no status: in a condition, bash would ignore the failures inside the function.
run_logged() {
  local title=$1 status=0 started=$SECONDS
  shift
  [[ $did_something ]] || : >"$LOG"
  did_something=yes
  printf '\n=== %s: %s\n' "$(date +%T)" "$title" >>"$LOG"
  on_terminal || say "[$step_number/$step_count] $title"
  set -m
  "$@" >>"$LOG" 2>&1 </dev/null 9>&- &
  child=$!
  set +m
  watch_child "$title"
  wait "$child" || status=$?
  child=''
  on_terminal && printf '\r\033[K' >&2
  if ((status == 0)); then
    say "[$step_number/$step_count] $title: done in $((SECONDS - started)) s"
  else
    say "[$step_number/$step_count] $title: FAILED; the end of build/setup.log:"
    tail -n 15 "$LOG" | cut -c1-300 | sed 's/^/    | /' >&2
  fi
  ok=$( ((status)) || echo yes)
}

clean_up() {
  trap '' INT TERM
  if [[ $child ]]; then
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  remove_own_policy
}
trap clean_up EXIT
trap 'say ""; say "set-up interrupted; the next one goes on where this one was"; exit 130' INT TERM HUP

# --- what is done already ----------------------------------------------------------------------------------------

stamped() { [[ -f $STAMPS/$1 && $(<"$STAMPS/$1") == "$2" ]]; }
stamp() { mkdir -p "$STAMPS" && printf '%s\n' "$2" >"$STAMPS/$1.new" && mv "$STAMPS/$1.new" "$STAMPS/$1"; }
hash_of_input() { sha256sum | cut -c1-16; }

# A step that could not be done: for whom it matters, and what works all the same.
missing() {
  failed+=("$1")
  say "flexo: $2"
}

# --- the system's packages ---------------------------------------------------------------------------------------

readonly POLICY=/usr/sbin/policy-rc.d
readonly POLICY_MARK='# flexo: set-up is running, no service is to be started'

# Debian's way to install a package without starting its service. A file of the administrator's own is left alone.
put_own_policy() {
  [[ -e $POLICY ]] || { printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY" && chmod 755 "$POLICY"; }
}
remove_own_policy() {
  if [[ -w $POLICY ]] && grep -qxF "$POLICY_MARK" "$POLICY"; then rm -f "$POLICY"; fi
}

# Prints the packages that are neither installed nor provided by something else.
missing_packages() {
  local installed entry package other
  installed=$'\n'$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${PACKAGES[@]%%:*}" 2>/dev/null || true)$'\n'
  for entry in "${PACKAGES[@]}"; do
    package=${entry%%:*} other=${entry#*:}
    [[ $installed == *$'\n'"$package installed"$'\n'* || -e $other ]] && continue
    if [[ $other == - ]]; then # a matter of Debian's splitting alone
      command -v dpkg-query >/dev/null || continue
    elif command -v "$other" >/dev/null; then
      continue
    fi
    printf '%s\n' "$package"
  done
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  put_own_policy
  dpkg --configure -a
  apt-get -o DPkg::Lock::Timeout=300 update
  apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

step_system() {
  local -a wanted
  mapfile -t wanted < <(missing_packages)
  ((${#wanted[@]} == 0)) && return
  local still='Unit tests work without Slurm; the demo and the tests on a real cluster do not.'
  if ! command -v apt-get >/dev/null; then
    missing system "${wanted[*]} (Debian's names) not installed, and there is no apt here to install them. $still"
  elif ((EUID != 0)); then
    missing system "not root, so these cannot be installed: ${wanted[*]} (as root: apt-get install --no-install-recommends ${wanted[*]}). $still"
  else
    run_logged "System packages (${#wanted[@]})" install_packages "${wanted[@]}"
    [[ $ok ]] || missing system "apt-get could not install ${wanted[*]}: is the network there? $still"
  fi
  remove_own_policy
}

# --- the virtual environment and what flexo itself needs ---------------------------------------------------------

system_python() {
  local python=/usr/bin/python3
  [[ -x $python ]] || python=$(command -v python3) || return 1
  printf '%s\n' "$python"
}

# A .venv that was begun or half removed, made by another Python, or moved here from elsewhere, is not sound.
venv_is_sound() {
  local probe='import pip, sys; sys.exit(not pip.__file__.startswith(sys.argv[1]) or sys.prefix != sys.argv[1] or sys.version != sys.argv[2])'
  "$PYTHON" -c "$probe" "$VENV" "$1" 2>/dev/null && grep -qF "$VENV" "$VENV/bin/activate" 2>/dev/null
}

make_venv() {
  rm -rf "$VENV"
  "$1" -m venv "$VENV"
}

install_flexo() {
  "$PYTHON" -m pip install -e ".[$1]"
  # without dependencies: its wheel asks for an older protobuf than gRPC's code here; the solver works with ours
  "$PYTHON" -m pip install --no-deps "ortools==$ORTOOLS_VERSION"
}

step_python() {
  local python version key
  if ! python=$(system_python); then
    missing python 'there is no python3: nothing works without it (Debian: apt-get install python3 python3-venv).'
    return
  fi
  version=$("$python" -c 'import sys; print(sys.version)')
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    missing python "$python is Python ${version%% *}, and flexo needs 3.11 or later: nothing works without it."
    return
  fi
  key=$(printf '%s' "$ROOT $version" | cat - pyproject.toml setup.py | hash_of_input)
  stamped venv "$ROOT $version" && stamped flexo "$key" && return
  if ! stamped venv "$ROOT $version"; then
    ok=yes
    venv_is_sound "$version" || run_logged 'Virtual environment' make_venv "$python"
    if [[ ! $ok ]]; then
      missing python 'the virtual environment .venv could not be made (Debian: apt-get install python3-venv): nothing works without it.'
      return
    fi
    stamp venv "$ROOT $version"
  fi
  run_logged 'Python packages' install_flexo daemon,etcd,docs,dev
  if [[ ! $ok ]]; then
    rm -f "$STAMPS/venv" # looked at again next time
    missing python 'pip could not install what flexo needs: is the network there? Nothing works without it.'
    return
  fi
  stamp flexo "$key"
}

# --- what training needs -----------------------------------------------------------------------------------------

readonly WITHOUT_TRAINING='Unit tests work without it; the demo and the tests of training do not.'

step_torch() {
  local key
  [[ -x $PYTHON && -f $STAMPS/flexo ]] || { failed+=(torch); return; }
  key=$(<"$STAMPS/flexo")
  stamped torch "$key" && return
  run_logged 'PyTorch' install_flexo daemon,etcd,docs,training,dev
  if [[ $ok ]]; then
    stamp torch "$key"
  else
    missing torch "pip could not install PyTorch. $WITHOUT_TRAINING"
  fi
}

version_of() { "$PYTHON" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1"; }

# Horovod's CMake appends -std=c++14 where PyTorch's headers need 17: the compiler is wrapped to have the last word.
build_horovod() {
  local folder=$1 work=$2 memory_gib jobs
  memory_gib=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  jobs=$((memory_gib / 2 < $(nproc) ? memory_gib / 2 : $(nproc))) # a compiler takes up to 1.7 GiB
  "$PYTHON" -m pip install numpy setuptools==80.9.0 wheel packaging
  printf '#!/bin/sh\nexec g++ "$@" -std=c++17 -g0\n' >"$work/cxx17"
  chmod 755 "$work/cxx17"
  env CXX="$work/cxx17" MAKEFLAGS="-j$((jobs > 1 ? jobs : 1))" TMPDIR="$work" \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
    "$PYTHON" -m pip wheel --no-cache-dir --no-deps --no-build-isolation -w "$work/wheel" "horovod==$HOROVOD_VERSION"
  mkdir -p "$folder"
  mv "$work/wheel"/horovod-*.whl "$folder/"
}

build_horovod_once() {
  local folder=$1 work=$CACHE/wheels/.building
  mkdir -p "$CACHE/wheels"
  exec 8>"$CACHE/wheels/.lock" # another clone may be building the same wheel
  flock 8
  compgen -G "$folder/horovod-*.whl" >/dev/null && return
  rm -rf "$work"
  mkdir "$work"
  build_horovod "$folder" "$work"
  rm -rf "$work"
}

install_horovod() {
  "$PYTHON" -m pip install --no-deps --force-reinstall "$1"/horovod-*.whl
  "$PYTHON" -c 'import horovod.torch' # a wheel that was built for something else shows it here
}

step_horovod() {
  local key folder
  [[ -f $STAMPS/torch ]] || { failed+=(horovod); return; }
  stamped horovod "$(<"$STAMPS/torch")" && return
  key=horovod-$HOROVOD_VERSION-torch-$(version_of torch)-$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')-$(uname -m)
  folder=$CACHE/wheels/$key
  if ! stamped horovod-wheel "$key"; then
    if ! compgen -G "$folder/horovod-*.whl" >/dev/null; then
      run_logged 'Horovod, built once (takes minutes)' build_horovod_once "$folder"
      [[ $ok ]] || { missing horovod "Horovod could not be built. $WITHOUT_TRAINING"; return; }
    fi
    run_logged 'Horovod' install_horovod "$folder"
    if [[ ! $ok ]]; then
      rm -rf "$folder" # whatever is wrong with it, the next set-up builds it anew
      missing horovod "the Horovod wheel in $folder does not work and was removed, run the same again. $WITHOUT_TRAINING"
      return
    fi
    stamp horovod-wheel "$key"
  fi
  stamp horovod "$(<"$STAMPS/torch")"
}

# --- code generated from protos/ ---------------------------------------------------------------------------------

generate_protos() { "$PYTHON" protos/generate.py; }

protos_are_fresh() {
  local source
  for source in protos/generate.py protos/flexo/v1/*.proto; do
    [[ $source -nt protos/flexo_protos/v1/__init__.py ]] && return 1
  done
  [[ -f protos/flexo_protos/v1/__init__.py ]]
}

step_protos() {
  [[ -f $STAMPS/flexo ]] || { failed+=(protos); return; }
  protos_are_fresh && return
  run_logged 'gRPC code' generate_protos
  [[ $ok ]] || missing protos 'protoc could not make the gRPC code: nothing works without it.'
}

# --- the SPANK plugin --------------------------------------------------------------------------------------------

build_plugin() { make -C slurm_plugin; }

step_plugin() {
  make -q -C slurm_plugin >/dev/null 2>&1 && return
  if [[ " ${failed[*]} " == *' system '* ]] && ! { command -v cc && command -v sbatch; } >/dev/null; then
    failed+=(plugin) # for the reason given there
    return
  fi
  run_logged 'SPANK plugin' build_plugin
  [[ $ok ]] || missing plugin "the SPANK plugin could not be compiled: sbatch --elastic does not work, --comment=\"elastic=2-8\" does; the demo and the tests on a real cluster need it."
}

# --- all of it ---------------------------------------------------------------------------------------------------

# Sets `steps`, those to take in order, and `needs`, those that the caller cannot do without.
plan_for() {
  case $1 in
    lint | unit) steps='system python protos plugin' needs='python protos' ;;
    slurm) steps='system python protos plugin' needs=$steps ;;
    all) steps='system python torch horovod protos plugin' needs=$steps ;;
    *)
      say "usage: ./setup.sh [lint|unit|slurm|all], not '$1'"
      exit 2
      ;;
  esac
}

main() {
  local caller=${1:-all} steps needs step lacking=()
  plan_for "$caller"
  mkdir -p build
  exec 9>build/setup.lock
  if ! flock -n 9; then
    say 'flexo: another set-up is at work in this folder; waiting for it'
    flock 9
  fi
  remove_own_policy # of a set-up that was killed
  step_count=$(wc -w <<<"$steps")
  for step in $steps; do
    step_number=$((step_number + 1))
    "step_$step"
  done
  for step in $needs; do
    [[ " ${failed[*]} " == *" $step "* ]] && lacking+=("$step")
  done
  if ((${#lacking[@]})); then
    say "flexo: set-up for '$caller' is not complete (${lacking[*]}); what is missing stands above, the details in build/setup.log"
    exit 1
  fi
  if [[ $did_something ]] && ((${#failed[@]} == 0)); then
    say "flexo: set-up is complete ($SECONDS s)"
  fi
}

main "$@"
