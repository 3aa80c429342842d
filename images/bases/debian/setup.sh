# Run by mmdebstrap before apt is asked for anything; $1 is the tree.
set -eu

# /usr is merged from the start, so usr-is-merged can be had instead of usrmerge, which brings all of perl.
for name in bin sbin lib lib32 lib64 libx32; do
    case "$(dpkg --print-architecture):$name" in
        amd64:* | *:bin | *:sbin | *:lib) ;;
        *) continue ;;
    esac
    mkdir -p "$1/usr/$name"
    ln -s "usr/$name" "$1/$name"
done
mkdir -p "$1/etc/apt/preferences.d"
printf 'Package: usrmerge\nPin: release *\nPin-Priority: -1\n' >"$1/etc/apt/preferences.d/99torchkiln-build"

# A mirror serves the build alone: the image keeps the sources that mmdebstrap would have used.
if [ -n "${TORCHKILN_SOURCES:-}" ]; then
    signed=$(sed -n 's/^deb \(\[[^]]*\] \).*/\1/p' "$1/etc/apt/sources.list" | head -n 1)
    mv "$1/etc/apt/sources.list" "$1/etc/apt/sources.list.stock"
    printf '%s\n' "$TORCHKILN_SOURCES" | sed "s|^deb \\([^[]\\)|deb $signed\\1|" >"$1/etc/apt/sources.list"
fi
