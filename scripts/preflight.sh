#!/bin/sh
# Says, one sentence each, what this machine lacks for setting Retoma up, before anything is written.
# Usage: preflight.sh PYTHON VENV
set -u
python=$1
venv=$2
lacking=0

lacks() {
    echo "retoma: $1" >&2
    lacking=1
}

if ! command -v "$python" >/dev/null 2>&1; then
    lacks "$python isn't there: install it (apt-get install python3), or name another one (make PYTHON=python3.12)."
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    lacks "$python is older than Python 3.11: install a newer one and name it (make PYTHON=python3.12)."
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    lacks "$python can't make virtual environments: apt-get install python3-venv."
fi

if [ "$(uname -s)" = Linux ]; then
    # ldconfig lives in a folder that a normal user's PATH may lack.
    if ! PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1'; then
        lacks "libgomp.so.1, which the inference library needs, isn't there: apt-get install libgomp1."
    fi
    if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo; then
        lacks "this processor has no AVX2, which the prebuilt inference library needs; there is no way around it here."
    fi
fi

# The set-up empties the folder of a half-made environment, so it must be one that is ours to empty.
case $(basename "$venv") in
.venv*) ;;
*)
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
        lacks "$venv is there and is no virtual environment: name another folder (make VENV=.venv)."
    fi
    ;;
esac

exit $lacking
