# What the scripts in this folder share. A script sets `name` and reads this file.

say() { printf '%s: %s\n' "$name" "$*" >&2; }
fail() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        say "root or sudo is required"
        return 1
    fi
}
