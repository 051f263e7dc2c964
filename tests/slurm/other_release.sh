#!/bin/bash
# The adapter's tests against another release of Slurm: tests/slurm/other_release.sh SUITE [arguments of pytest]
#
#   tests/slurm/other_release.sh trixie    Debian's Slurm 24.11
#   tests/slurm/other_release.sh forky     Debian's Slurm 26.05, and pyslurm 25.11 built against it
#
# Not part of `make test`: it needs root, mmdebstrap, util-linux, the network (Debian's packages and PyPI) and, for
# each release once, about a gigabyte below $FLEXO_RELEASES (default /var/tmp/flexo-releases) and two to five
# minutes. Everything runs in a PID and a mount namespace of its own that ends with it: nothing stays running or
# mounted. Remove a release with rm -r of its folder.
set -euo pipefail
umask 022

suite=${1:?which suite: trixie or forky}
shift
repository=$(realpath "$(dirname "$0")/../..")
folder=${FLEXO_RELEASES:-/var/tmp/flexo-releases}/$suite
pip="$repository/.venv/bin/pip"

make_folder() {
    echo "making $folder"
    local slurm=slurmctld,slurmd,slurm-client,slurmdbd,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin,libslurm-dev
    local others=munge,mariadb-server-core,mariadb-client-core,procps,python3-venv,python3-dev,gcc,libc6-dev
    mkdir -p "$(dirname "$folder")"
    mmdebstrap --quiet --variant=apt --include="$slurm,$others" \
        --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$folder"
    mkdir -p "$folder/flexo" "$folder/wheels" "$folder/run/munge"
    add_wrappers
    local python
    python=$(chroot "$folder" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    chroot "$folder" python3 -m venv /venv
    "$pip" download --quiet --dest "$folder/wheels" --only-binary=:all: --python-version "$python" \
        pytest pytest-timeout psutil setuptools wheel packaging 'Cython<4'
    chroot "$folder" /venv/bin/pip install --quiet --no-index --find-links=/wheels \
        pytest pytest-timeout psutil setuptools wheel packaging Cython
    echo /flexo/daemon > "$folder/venv/lib/python$python/site-packages/flexo.pth"
    [ "$suite" != forky ] || build_pyslurm
    touch "$folder/complete"
}

# What a lab made for 22.05 needs elsewhere.
add_wrappers() {
    # From 24.11 on, a machine without cgroups has to say so in a file beside slurm.conf.
    cat > "$folder/usr/local/sbin/slurmctld" <<'END'
#!/bin/sh
echo CgroupPlugin=disabled > "$(dirname "$SLURM_CONF")/cgroup.conf"
exec /usr/sbin/slurmctld "$@"
END
    # MariaDB 11.8, just made, answers slurmdbd's first question with an error for some seconds.
    cat > "$folder/usr/local/sbin/slurmdbd" <<'END'
#!/bin/sh
for attempt in 1 2 3 4 5; do
    setsid /usr/sbin/slurmdbd -D "$@" > /dev/null 2>&1 < /dev/null &
    sleep 5
    kill -0 $! 2> /dev/null && exit 0
done
exit 1
END
    chmod +x "$folder"/usr/local/sbin/slurm*
}

# PyPI has pyslurm for 25.11, which builds against 26.05 if it takes it for 25.11.
build_pyslurm() {
    "$pip" download --quiet --dest "$folder/wheels" --no-deps --no-build-isolation --no-binary=pyslurm 'pyslurm==25.11.*'
    mkdir -p "$folder/headers"
    cp -r "$folder/usr/include/slurm" "$folder/headers/"
    sed -i 's/^\(#define SLURM_VERSION_NUMBER\).*/\1 0x190b02/' "$folder/headers/slurm/slurm_version.h"
    local library
    library=$(chroot "$folder" find /usr/lib -name libslurmfull.so -printf '%h' -quit)
    chroot "$folder" env SLURM_LIB_DIR="$library" SLURM_INCLUDE_DIR=/headers CFLAGS="-O1 -DSLURM_BACKWARD_COMPAT \
        -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2038" \
        nice /venv/bin/pip install --quiet --no-build-isolation --no-deps --no-index --find-links=/wheels pyslurm
}

if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    make_folder
fi
# The plugin is hidden: it was compiled for the Slurm of this machine.
exec unshare --mount --pid --fork --kill-child --propagation private bash -c '
    folder=$1 repository=$2
    shift 2
    mount -t proc proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    mount --bind "$repository" "$folder/flexo"
    mount -t tmpfs none "$folder/flexo/slurm_plugin"
    exec chroot "$folder" env -C /flexo PYTHONDONTWRITEBYTECODE=1 CI=true \
        /venv/bin/python -m pytest -p no:cacheprovider tests/slurm/test_adapter.py "$@"
' _ "$folder" "$repository" "$@"
