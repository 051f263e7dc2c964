#!/bin/bash
# Installs what flexo's make targets need, and nothing twice: setup.sh [lint|unit|all|yarn|web|native|torchft|torch-matrix|frameworks|recipes|previous-torch] [--lab=TARGET].
#
# The argument says what the caller is about to do, and so which steps are taken: PyTorch is large. `--lab` says that make's
# TARGET brings up Slurm clusters on this machine, which needs root. A step that fails stops only a caller who needs it: unit
# tests run without Slurm. .venv/.setup has one file for each step that is done, with a hash of what the step depends on, so
# an interrupted step is done again. The output of the steps is in build/setup.log.
#
# FLEXO_TORCH=PYTHON uses the PyTorch of that Python instead of downloading one. Later calls remember it, until one says
# FLEXO_TORCH=download.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly ROOT=$PWD
readonly VENV=$ROOT/.venv
readonly PYTHON=$VENV/bin/python
readonly UV=$VENV/bin/uv
readonly NATIVE=$VENV/native # Horovod with its native library, for those who put it on PYTHONPATH
readonly TORCHFT=$VENV/torchft # torchft, for make bench-torch, likewise
readonly TORCH_MATRIX=$VENV/torch-matrix # what the scripts of make test-torch-matrix import
readonly PREVIOUS_FRAMEWORKS=$VENV/previous-frameworks # Accelerate and others of a year ago, for make test-frameworks
readonly WANDB=$VENV/wandb # wandb, likewise
readonly RECIPES=$VENV/recipes # Hydra and nbconvert, for the tests of recipes in make test-all
readonly PREVIOUS_TORCH=$VENV/previous-torch # PyTorch of the minor release before, for make test-torch, likewise
readonly STAMPS=$VENV/.setup
readonly LOG=$ROOT/build/setup.log
readonly PLAIN_INTERVAL_S=30 # how often a long step says that it is still there, where no terminal is
readonly LEAST_PYTHON='3, 11'
HOROVOD_VERSION=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' packages/horovod_wheels.py)
readonly HOROVOD_VERSION

# Debian's package:the command or file by which it is known where something else provides it ("-": nothing does).
readonly PACKAGES=(
  python3:python3 python3-venv:- gcc:gcc make:make
  slurmctld:slurmctld slurmd:slurmd slurm-client:sbatch slurm-wlm-basic-plugins:slurmctld slurmdbd:slurmdbd
  slurm-wlm-mysql-plugin:slurmdbd libslurm-dev:/usr/include/slurm/spank.h munge:munged
  mariadb-server-core:mariadbd mariadb-client-core:mariadb lua5.1:lua5.1 procps:ps iproute2:ip etcd-server:etcd
  mmdebstrap:mmdebstrap rpm:rpmbuild
  prometheus:prometheus sudo:sudo openssl:openssl
  systemd-standalone-sysusers:systemd-sysusers systemd-standalone-tmpfiles:systemd-tmpfiles
)
readonly PACKAGES_OF_NATIVE=(python3-dev:- g++:g++ cmake:cmake)

# What the environment says about other Pythons, and the make that calls, must not decide what is installed here.
unset MAKEFLAGS MFLAGS MAKELEVEL
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_USER PIP_ROOT PIP_REQUIRE_VIRTUALENV
unset UV_SYSTEM_PYTHON UV_PYTHON UV_PROJECT_ENVIRONMENT UV_OFFLINE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 LC_ALL=C.UTF-8
if [[ ${FLEXO_TORCH:-} && $FLEXO_TORCH != download ]]; then
  FLEXO_TORCH=$(command -v "$FLEXO_TORCH" || printf '%s\n' "$FLEXO_TORCH") # as the caller's PATH has it
fi
export PATH="$VENV/bin:${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
readonly CACHE=${FLEXO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flexo}

# --- telling what happens ----------------------------------------------------------------------------------------

step_number=0
step_count=0
child=''
failed=()
in_place=() # what is to be said of steps that had nothing to do, once another step has something to do
logged=0
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

# A set-up with nothing to do says nothing. Any other one has a line for each step, so that no number is missing.
tell_in_place() {
  local line
  for line in "${in_place[@]}"; do say "$line"; done
  in_place=()
}

# Runs a function as a process group of its own, so that Ctrl-C ends all that it started; its output goes to the log.
# Sets `ok` to "yes" or "". It returns no status: in a condition, bash would ignore the failures inside the function.
run_logged() {
  local title=$1 status=0 started=$SECONDS
  shift
  tell_in_place
  logged=$((logged + 1))
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

# Of those given, prints the packages that are neither installed nor provided by something else.
missing_packages() {
  local installed entry package other
  installed=$'\n'$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${@%%:*}" 2>/dev/null || true)$'\n'
  for entry; do
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

# install_missing STEP CONSEQUENCE PACKAGE:COMMAND...
install_missing() {
  local step=$1 still=$2
  local -a wanted
  mapfile -t wanted < <(missing_packages "${@:3}")
  ((${#wanted[@]} == 0)) && return
  if ! command -v apt-get >/dev/null; then
    missing "$step" "not installed: ${wanted[*]} (Debian's names), and there is no apt-get here. $still"
  elif ((EUID != 0)); then
    missing "$step" "not installed: ${wanted[*]}. As root: apt-get install --no-install-recommends ${wanted[*]}. $still"
  else
    run_logged "System packages (${#wanted[@]})" install_packages "${wanted[@]}"
    [[ $ok ]] || missing "$step" "apt-get could not install ${wanted[*]}: is the network there? $still"
  fi
  remove_own_policy
}

step_system() {
  install_missing system 'Unit tests work without Slurm; the demo and the tests on a real cluster do not.' "${PACKAGES[@]}"
}

# --- the virtual environment and its packages --------------------------------------------------------------------

system_python() {
  local python=/usr/bin/python3
  [[ -x $python ]] || python=$(command -v python3) || return 1
  printf '%s\n' "$python"
}

# uv writes programs that find Python beside themselves, whatever the folder's name, if pyvenv.cfg has this line.
readonly RELOCATABLE='relocatable = true'

# A .venv that was begun or half removed, or made by another Python or an older set-up, is not sound.
venv_is_sound() {
  local probe='import sys; sys.exit(sys.prefix != sys.argv[1] or sys.version != sys.argv[2])'
  "$PYTHON" -c "$probe" "$VENV" "$1" && grep -qxF "$RELOCATABLE" "$VENV/pyvenv.cfg" && "$UV" --version
} &>/dev/null

make_venv() {
  rm -rf "$VENV"
  "$1" -m venv "$VENV"
  "$PYTHON" -m pip install --constraint constraints.txt uv
  printf '%s\n' "$RELOCATABLE" >>"$VENV/pyvenv.cfg"
}

# uv reads nothing of pip's configuration. What a site has told pip there (a mirror, a certificate), uv hears too.
tell_uv() {
  local key value
  export UV_NATIVE_TLS=1 UV_COMPILE_BYTECODE=1 UV_NO_PROGRESS=1
  while IFS='=' read -r key value; do
    value=${value#\'} value=${value%\'} value=${value//'\n'/ }
    case ${key##*.} in
      index-url) export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$value} ;;
      extra-index-url) export UV_INDEX=${UV_INDEX:-$value} ;;
      find-links) export UV_FIND_LINKS=${UV_FIND_LINKS:-${value// /,}} ;;
      trusted-host) export UV_INSECURE_HOST=${UV_INSECURE_HOST:-$value} ;;
      cert) export SSL_CERT_FILE=${SSL_CERT_FILE:-$value} ;;
    esac
  done < <("$PYTHON" -m pip config list)
}

# What generates the gRPC code comes first, so that uv makes no environment for it. The rest is one call: each resolves all.
install_packages_of() {
  local -a install=("$UV" pip install --python "$PYTHON" --constraint constraints.txt)
  tell_uv
  "${install[@]}" setuptools grpcio-tools mypy-protobuf
  "${install[@]}" --no-build-isolation --editable ".[$1]"
}

# Where PyTorch comes from: "download", or the Python that has it.
torch_source() {
  local source=${FLEXO_TORCH:-}
  [[ $source || ! -f $STAMPS/torch-source ]] || source=$(<"$STAMPS/torch-source")
  printf '%s\n' "${source:-download}"
}

step_python() {
  local python version source key extras=site,etcd,openid,docs,dev title='Python packages'
  python=$(system_python)
  version=$("$python" -c 'import sys; print(sys.version)')
  source=$(torch_source)
  if ! stamped venv "$ROOT $version" || ! stamped torch-source "$source"; then
    ok=yes
    if ! venv_is_sound "$version" || [[ $source != "$(FLEXO_TORCH='' torch_source)" ]]; then
      run_logged 'Virtual environment' make_venv "$python"
    fi
    if [[ ! $ok ]]; then
      missing python 'the virtual environment .venv could not be made (Debian: apt-get install python3-venv; or is the network away?): nothing works without it.'
      return
    fi
    stamp venv "$ROOT $version"
    stamp torch-source "$source"
  fi
  key=$(printf '%s' "$ROOT $version" | cat - pyproject.toml setup.py constraints.txt | hash_of_input)
  if [[ " $steps " == *' horovod '* ]]; then
    stamped training "$key" && return
    extras+=,training
    [[ $source != download ]] || extras+=,torch title+=' with PyTorch'
  else
    stamped flexo "$key" && return
  fi
  rm -f "$STAMPS/torch" "$STAMPS/training"
  if [[ $extras == *,torch* ]]; then
    say "[$step_number/$step_count] $title: downloads about 3 GB, unless an earlier set-up on this machine did"
  fi
  run_logged "$title" install_packages_of "$extras"
  if [[ ! $ok ]]; then
    rm -f "$STAMPS/venv" # looked at again next time
    missing python 'uv could not install what flexo needs: is the network there? Nothing works without it.'
    return
  fi
  stamp flexo "$key"
  [[ $extras != *,training* ]] || stamp training "$key"
}

# --- PyTorch that is installed already ---------------------------------------------------------------------------

linked_torch() { "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/zz_torch_of_another_python.pth")'; }
unlink_torch() { rm -f "$(linked_torch)"; }

# Prints what a Python is; then, for a module's name, the folder that has it, and those that it may import from.
readonly ABOUT_PYTHON='
import importlib.util, os, sys
print(sys.implementation.name, "%d.%d" % sys.version_info[:2] + getattr(sys, "abiflags", ""))
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    if spec and spec.origin:
        found = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
        print(*dict.fromkeys([os.path.dirname(os.path.dirname(spec.origin)), *found]), sep="\n")
'

# Says why the PyTorch that FLEXO_TORCH names cannot be used; nothing if it can, as far as is known without importing it.
why_not_this_torch() {
  local source=$1 own theirs
  local next='Name a Python that has PyTorch, such as FLEXO_TORCH=/opt/torch/bin/python3, or say FLEXO_TORCH=download.'
  [[ $source != download ]] || return 0
  if ! command -v "$source" >/dev/null; then
    printf '%s\n' "FLEXO_TORCH=$source: there is no such program. $next"
  elif [[ $source == "$VENV"/* ]]; then
    printf '%s\n' "FLEXO_TORCH=$source: this is the Python that needs a PyTorch. $next"
  elif ! theirs=$("$source" -c "$ABOUT_PYTHON" torch 2>/dev/null </dev/null) || [[ ! $theirs ]]; then
    printf '%s\n' "FLEXO_TORCH=$source: this program is not a Python 3. $next"
  else
    own=$("$(system_python)" -c "$ABOUT_PYTHON")
    if [[ ${theirs%%$'\n'*} != "$own" ]]; then
      printf '%s\n' "FLEXO_TORCH=$source: it is ${theirs%%$'\n'*}, and .venv is $own. PyTorch is compiled for one of them. $next"
    elif [[ $theirs != *$'\n'* ]]; then
      printf '%s\n' "FLEXO_TORCH=$source: PyTorch is not installed there. $next"
    fi
  fi
}

# Its folders come last on sys.path: only what is not in .venv is taken from there.
link_torch() {
  "$1" -c "$ABOUT_PYTHON" torch | tail -n +2 >"$(linked_torch)"
  "$PYTHON" -c '
import sys, torch, torch.distributed as c10d
if not (c10d.is_available() and c10d.is_gloo_available()):
    sys.exit("this PyTorch has no torch.distributed with Gloo, which training needs")
torch.ones(1).numpy()
print("PyTorch", torch.__version__, "of", torch.__file__)
'
}

step_torch() {
  local source
  source=$(torch_source)
  [[ $source != download && -f $STAMPS/training ]] || return 0
  stamped torch "$source" && [[ -f $(linked_torch) ]] && return
  run_logged "PyTorch of $source" link_torch "$source"
  if [[ $ok ]]; then
    stamp torch "$source"
  else
    unlink_torch
    missing torch "FLEXO_TORCH=$source: that PyTorch does not work in .venv. Name another one, or say FLEXO_TORCH=download."
  fi
}

# --- Horovod -----------------------------------------------------------------------------------------------------

readonly WITHOUT_TRAINING='Unit tests work without it; the demo and the tests of training do not.'
version_of() { "$PYTHON" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1"; }
this_python() { "$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)'; }

make_horovod_once() {
  local kind=$1 folder=$2
  mkdir -p "$CACHE/wheels"
  exec 8>"$CACHE/wheels/.lock" # another clone may be making the same wheel
  flock 8
  compgen -G "$folder/horovod-*.whl" >/dev/null || nice -n 5 "$PYTHON" packages/horovod_wheels.py "$kind" "$folder"
}

install_python_files() {
  "$UV" pip install --python "$PYTHON" --no-deps --reinstall "$1"/horovod-*.whl
  "$PYTHON" -c 'from horovod_elastic.core.c10d import standin; standin.install(); import horovod.torch'
}

install_native() {
  rm -rf "$NATIVE"
  "$UV" pip install --python "$PYTHON" --no-deps --target "$NATIVE" "$1"/horovod-*.whl
  PYTHONPATH=$NATIVE "$PYTHON" -c 'import horovod.torch' # a wheel that was built for something else shows it here
}

# horovod_wheel STEP KIND NAME HOW TITLE: its wheel, made at most once for all clones, installed by the function HOW.
horovod_wheel() {
  local step=$1 kind=$2 folder=$CACHE/wheels/$3 how=$4 title=$5
  stamped "$step" "$3 $(<"$STAMPS/training")" && return
  if ! compgen -G "$folder/horovod-*.whl" >/dev/null; then
    run_logged "$title" make_horovod_once "$kind" "$folder"
    [[ $ok ]] || { missing "$step" "Horovod could not be made. $WITHOUT_TRAINING"; return; }
  fi
  run_logged "Horovod, installed" "$how" "$folder"
  if [[ $ok ]]; then
    stamp "$step" "$3 $(<"$STAMPS/training")"
  else
    rm -rf "$folder" # whatever is wrong with it, the next set-up makes it anew
    missing "$step" "the Horovod wheel in $folder does not work and was removed: run the same again. $WITHOUT_TRAINING"
  fi
}

step_horovod() {
  [[ -f $STAMPS/training && " ${failed[*]} " != *' torch '* ]] || { failed+=(horovod); return; }
  horovod_wheel horovod python-files "horovod-$HOROVOD_VERSION-python-files-$(this_python)" install_python_files \
    "Horovod's Python files"
}

step_native() {
  local name
  [[ " ${failed[*]} " != *' horovod '* ]] || { failed+=(native); return; }
  name=horovod-$HOROVOD_VERSION-torch-$(version_of torch)-$(this_python)-$(uname -m)
  if ! compgen -G "$CACHE/wheels/$name/horovod-*.whl" >/dev/null; then
    install_missing native "Horovod's native library cannot be built without." "${PACKAGES_OF_NATIVE[@]}"
    [[ " ${failed[*]} " != *' native '* ]] || return 0
  fi
  horovod_wheel native native "$name" install_native "Horovod's native library, built once (takes minutes)"
}

# --- what one target needs, beside .venv -------------------------------------------------------------------------

packages_of_torchft() {
  "$PYTHON" -c 'import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*extras["bench-torch"], sep="\n")'
}

packages_of_torch_matrix() { cat tests/torch_matrix/requirements.txt; }

previous_frameworks() { cat tests/training/previous_frameworks.txt; }

packages_of_wandb() { cat tests/training/wandb.txt; }

packages_of_recipes() { cat tests/training/recipes.txt; }

# PyTorch of the minor release before: such as torch==2.12.* for 2.13.0. The newest of these is taken.
previous_torch() { version_of torch | awk -F '[.+]' '{ printf "torch==%d.%d.*\n", $1, $2 - 1 }'; }

# Without dependencies: .venv has PyTorch and what PyTorch needs, and all others are named.
install_beside() {
  local folder=$1 packages=$2 module=$3
  tell_uv
  rm -rf "$folder"
  "$packages" | "$UV" pip install --python "$PYTHON" --no-deps --target "$folder" --requirements -
  PYTHONPATH=$folder "$PYTHON" -c "import $module"
}

# beside NAME FOLDER PACKAGES MODULE TARGET
beside() {
  local name=$1 key
  [[ " ${failed[*]} " != *' horovod '* ]] || { failed+=("$name"); return; }
  key=$("$3" | cat - "$STAMPS/training" | hash_of_input)
  stamped "$name" "$key" && return
  run_logged "$name" install_beside "$2" "$3" "$4"
  if [[ $ok ]]; then
    stamp "$name" "$key"
  else
    missing "$name" "$name could not be installed: make $5 does not work."
  fi
}

step_torchft() { beside torchft "$TORCHFT" packages_of_torchft torchft bench-torch; }

step_torch-matrix() { beside torch-matrix "$TORCH_MATRIX" packages_of_torch_matrix trl test-torch-matrix; }

step_previous-frameworks() {
  beside previous-frameworks "$PREVIOUS_FRAMEWORKS" previous_frameworks tokenizers test-frameworks
}

step_wandb() { beside wandb "$WANDB" packages_of_wandb wandb test-frameworks; }

readonly PACKAGES_OF_MODULES=(environment-modules:/usr/share/modules/init/bash)

step_recipes() {
  beside recipes "$RECIPES" packages_of_recipes hydra 'test-all, as far as it runs recipes,'
  install_missing recipes 'The recipe with modules is not tested.' "${PACKAGES_OF_MODULES[@]}"
}

step_previous-torch() { beside previous-torch "$PREVIOUS_TORCH" previous_torch torch test-torch; }

# --- code generated from protos/ ---------------------------------------------------------------------------------

generate_protos() { "$PYTHON" protos/generate.py; }

protos_are_fresh() {
  local source
  for source in protos/generate.py protos/flexo/v1/*.proto protos/hadoop/*.proto; do
    [[ $source -nt protos/flexo_protos/hadoop/__init__.py ]] && return 1
  done
  [[ -f protos/flexo_protos/v1/__init__.py && -f protos/flexo_protos/hadoop/__init__.py ]]
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

# --- Hadoop, for YARN labs ---------------------------------------------------------------------------------------

readonly PACKAGES_OF_HADOOP=(openjdk-17-jre-headless:java maven:mvn)

get_hadoop() { "$PYTHON" -m flexo_lab.yarn; }

step_hadoop() {
  [[ " ${failed[*]} " != *' protos '* ]] || { failed+=(hadoop); return; }
  "$PYTHON" -m flexo_lab.yarn --check && return
  install_missing hadoop 'YARN labs need Java, and Maven once.' "${PACKAGES_OF_HADOOP[@]}"
  [[ " ${failed[*]} " != *' hadoop '* ]] || return 0
  run_logged 'Hadoop for YARN labs (once)' get_hadoop
  [[ $ok ]] || missing hadoop "Hadoop could not be downloaded: YARN labs do not work."
}

# --- Kerberos, for YARN labs with it -----------------------------------------------------------------------------

readonly PACKAGES_OF_KERBEROS=(
  krb5-kdc:krb5kdc krb5-admin-server:kadmin.local krb5-user:kinit libkrb5-dev:krb5-config python3-dev:-
)

install_gssapi() {
  tell_uv
  "$UV" pip install --python "$PYTHON" --constraint constraints.txt gssapi
}

step_kerberos() {
  local without='YARN labs without Kerberos work.'
  [[ -f $STAMPS/flexo ]] || { failed+=(kerberos); return; }
  "$PYTHON" -m flexo_lab.yarn --check-kerberos && return
  install_missing kerberos "$without" "${PACKAGES_OF_KERBEROS[@]}"
  [[ " ${failed[*]} " != *' kerberos '* ]] || return 0
  run_logged 'The Python package gssapi' install_gssapi
  [[ $ok ]] || missing kerberos "The Python package gssapi could not be built. $without"
}

# --- a browser, for the tests of the web pages -------------------------------------------------------------------

readonly PACKAGES_OF_CHROMIUM=(chromium:chromium fonts-dejavu-core:-)

step_chromium() { install_missing chromium 'The tests of the web pages do not work.' "${PACKAGES_OF_CHROMIUM[@]}"; }

# --- all of it ---------------------------------------------------------------------------------------------------

stop() {
  say "flexo: $1"
  exit "${2:-1}"
}

# Sets `steps`, those to take in order, and `needs`, those that the caller cannot do without.
plan_for() {
  case $1 in
    lint | unit) steps='system python protos plugin' needs='python protos' ;;
    all) steps='system python torch protos horovod plugin' needs=$steps ;;
    yarn)
      needs='system python torch protos horovod plugin hadoop'
      steps="$needs kerberos chromium"
      ;;
    web) steps='system python torch protos horovod plugin chromium' needs=$steps ;;
    native) steps='python torch protos horovod native' needs=$steps ;;
    torchft) steps='python torch protos horovod torchft' needs=$steps ;;
    torch-matrix) steps='python torch protos horovod torch-matrix' needs=$steps ;;
    frameworks) steps='python torch protos horovod torch-matrix previous-frameworks wandb' needs=$steps ;;
    recipes)
      needs='python torch protos horovod'
      steps="$needs recipes wandb"
      ;;
    previous-torch) steps='python torch protos horovod previous-torch' needs=$steps ;;
    *) stop "usage: ./setup.sh [lint|unit|all|yarn|web|native|torchft|torch-matrix|frameworks|recipes|previous-torch] [--lab=TARGET], not '$1'" 2 ;;
  esac
}

# Says what cannot be helped before anything is downloaded.
check_first() {
  local target=$1 python why
  local works='As an ordinary user these work: make test-unit, lint, docs, wheel, bench-papers, bench-scheduler, bench-loaning.'
  if [[ $target ]] && ((EUID != 0)); then
    stop "make $target needs root: it brings up a Slurm cluster on this machine, whose daemons change to other users. Run it as root. $works"
  fi
  if [[ $target ]] && ! command -v apt-get >/dev/null && why=$(missing_packages "${PACKAGES[@]}") && [[ $why ]]; then
    stop "make $target needs ${why//$'\n'/, } (Debian's names): not installed, and there is no apt-get here. Install them first."
  fi
  python=$(system_python) || stop 'there is no python3: nothing works without it (Debian: apt-get install python3 python3-venv).'
  "$python" -c "import sys; sys.exit(sys.version_info < ($LEAST_PYTHON))" ||
    stop "$python is $("$python" --version), and flexo needs Python ${LEAST_PYTHON/, /.} or later."
  why=$(why_not_this_torch "$(torch_source)")
  [[ ! $why ]] || stop "$why"
}

main() {
  local caller=all target='' argument steps needs step before lacking=()
  for argument; do
    case $argument in
      --lab=*) target=${argument#--lab=} ;;
      *) caller=$argument ;;
    esac
  done
  plan_for "$caller"
  check_first "$target"
  mkdir -p build
  exec 9>build/setup.lock
  if ! flock -n 9; then
    say 'flexo: another set-up is at work in this folder; waiting for it'
    flock 9
  fi
  remove_own_policy # of a set-up that was killed
  step_count=$(wc -w <<<"$steps")
  for step in $steps; do
    step_number=$((step_number + 1)) before=$logged
    "step_$step"
    if ((logged == before)) && [[ " ${failed[*]} " != *" $step "* ]]; then
      in_place+=("[$step_number/$step_count] $step: in place")
      [[ ! $did_something ]] || tell_in_place
    fi
  done
  for step in $needs; do
    [[ " ${failed[*]} " == *" $step "* ]] && lacking+=("$step")
  done
  if ((${#lacking[@]})); then
    stop "set-up for '$caller' is not complete (${lacking[*]}); what is missing stands above, the details in build/setup.log"
  fi
  if [[ $did_something ]] && ((${#failed[@]} == 0)); then
    say "flexo: set-up is complete ($SECONDS s)"
  fi
}

main "$@"
