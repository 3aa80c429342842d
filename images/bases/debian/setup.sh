# Run by mmdebstrap before apt is asked for anything; $1 is the tree.
set -eu

# /usr is merged from the start, so usr-is-merged can be had instead of usrmerge, which brings all of perl.
for name in bin sbin lib lib32 lib64 libx32; do
    case "$TORCHKILN_ARCH:$name" in
        amd64:* | *:bin | *:sbin | *:lib) ;;
        *) continue ;;
    esac
    mkdir -p "$1/usr/$name"
    ln -s "usr/$name" "$1/$name"
done
if [ -n "${TORCHKILN_MERGED:-}" ]; then
    mkdir -p "$1/etc/apt/preferences.d"
    printf 'Package: usrmerge\nPin: release *\nPin-Priority: -1\n' >"$1/etc/apt/preferences.d/99torchkiln-build"
fi

# A mirror serves the build alone: the image keeps the sources that mmdebstrap would have used. It writes them as lines,
# or, where it is newer, as paragraphs (deb822).
if [ -n "${TORCHKILN_SOURCES:-}" ]; then
    signed=
    for file in "$1/etc/apt/sources.list" "$1"/etc/apt/sources.list.d/*; do
        [ -f "$file" ] || continue
        [ -n "$signed" ] || signed=$(sed -n 's/^deb \(\[[^]]*\] \).*/\1/p; s/^Signed-By: \(.*\)/[signed-by=\1] /p' "$file" | head -n 1)
        mv "$file" "$file.stock"
    done
    printf '%s\n' "$TORCHKILN_SOURCES" | sed "s|^deb \\([^[]\\)|deb $signed\\1|" >"$1/etc/apt/sources.list"
fi
