#!/bin/sh
# Writes what is linked into each library and into the program: SBOMs in CycloneDX JSON, and licence texts.
#
#   notices.sh OUT VENDOR   OUT/libmnnkv.cdx.json, OUT/libmnnkv_model.cdx.json, OUT/libmnnkv_llama.cdx.json, OUT/mnnkv.cdx.json,
#                          OUT/mnnkv.txt
#
# VENDOR is the output of cargo vendor, where the texts come from; those of the libraries are in THIRD-PARTY.md. The time
# is SOURCE_DATE_EPOCH, else that of the commit. TARGET names the triple, since crates differ by system.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 OUT VENDOR" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
vendor=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
export LC_ALL=C
target=${TARGET:-x86_64-unknown-linux-gnu}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
time=$(TZ=UTC0 date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)

# Crates that are linked, not those that build them. A dependency is as deep as the number before its name.
tree() {
    cargo tree --locked --package "$1" --target "$target" --edges normal,no-proc-macro --no-dedupe --prefix depth \
        --format ' {p} | {l} | {r}'
}

# sbom PACKAGE TYPE NAME
sbom() {
    tree "$1" | awk -v type="$2" -v name="$3" -v time="$time" '
        function component(kind, ref, name, version, licence, rest) {
            return "{\"type\":\"" kind "\",\"bom-ref\":\"" ref "\",\"name\":\"" name "\"" \
                (version == "" ? "" : ",\"version\":\"" version "\"") \
                ",\"licenses\":[{\"expression\":\"" licence "\"}]" rest "}"
        }
        function depends(from, to) {
            if (!((from, to) in edge)) {
                edge[from, to] = 1
                below[from] = below[from] (below[from] == "" ? "" : ",") "\"" to "\""
            }
        }
        function add(ref, line) { if (!(ref in known)) { known[ref] = 1; refs[++count] = ref; lines[count] = line } }
        FILENAME == "Cargo.lock" {
            gsub(/"/, "")
            if ($1 == "name") crate = $3
            else if ($1 == "version") version = $3
            else if ($1 == "checksum") sum[crate "@" version] = $3
            next
        }
        {
            depth = $1; crate = $2; version = substr($3, 2); split($0, field, / \| /)
            licence = field[2]; gsub(/\//, " OR ", licence)
            url = field[3]; sub(/ .*/, "", url)
            key = crate "@" version; ref = key; gsub(/\+/, "%2B", ref); ref = "pkg:cargo/" ref
            path[depth] = ref
            if (depth == 0) {
                root = ref
                top = component(type, ref, name, version, licence, "")
                next
            }
            rest = ""
            if (key in sum) rest = ",\"purl\":\"" ref "\"" \
                ",\"hashes\":[{\"alg\":\"SHA-256\",\"content\":\"" sum[key] "\"}]"
            if (url != "") rest = rest ",\"externalReferences\":[{\"type\":\"vcs\",\"url\":\"" url "\"}]"
            add(ref, component("library", ref, crate, version, licence, rest))
            depends(path[depth - 1], ref)
            if (crate == "zstd-sys" && split(version, part, /\+zstd\./) == 2) {
                zstd = "pkg:generic/zstd@" part[2]
                add(zstd, component("library", zstd, "zstd", part[2], "BSD-3-Clause", ",\"purl\":\"" zstd "\""))
                depends(ref, zstd)
            }
        }
        END {
            std = "rust-std"
            add(std, component("library", std, "std", "", "MIT OR Apache-2.0", \
                ",\"description\":\"Standard library of the Rust compiler that builds\""))
            depends(root, std)
            printf "{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n"
            printf "\"metadata\":{\"timestamp\":\"%s\",\"component\":%s},\n\"components\":[\n", time, top
            for (i = 1; i <= count; i++) printf "%s%s\n", lines[i], i < count ? "," : ""
            printf "],\n\"dependencies\":[\n{\"ref\":\"%s\",\"dependsOn\":[%s]}", root, below[root]
            for (i = 1; i <= count; i++)
                if (refs[i] != root) printf ",\n{\"ref\":\"%s\",\"dependsOn\":[%s]}", refs[i], below[refs[i]]
            printf "\n]}\n"
        }' Cargo.lock - >"$out/$3.cdx.json"
}

# The licence files of the crate $1, version $2, without those of Apache-2.0, whose text is in LICENSE.
texts() {
    folder=$vendor/$1-$2
    [ -d "$folder" ] || folder=$vendor/$1
    grep -qx "version = \"$2\"" "$folder/Cargo.toml" || { echo "$0: $1 $2 is not in $vendor" >&2; exit 1; }
    find "$folder" -maxdepth 2 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' \
        -o -iname 'notice*' -o -iname 'unlicense*' \) | sort | while read -r file; do
        # ZSTD is used under BSD-3-Clause.
        [ "${file##*/zstd/}" != COPYING ] || continue
        grep -q 'TERMS AND CONDITIONS FOR USE, REPRODUCTION' "$file" || echo "$file"
    done
}

# The crates of the program as a list, then each text once.
licences() {
    all=$(tree mnnkv-cli | sed 's/^[0-9]* //' | grep -v ' (/' | sort -u)
    printf 'Crates in the program mnnkv, with version and licence. A choice that includes Apache-2.0 is used under that,\n'
    printf 'whose text is not repeated. The standard library of Rust is under MIT OR Apache-2.0.\n\n'
    printf '%s\n' "$all" | sed 's/ v\([0-9]\)/ \1/; s/ | [^|]*$//; s/ | / · /; s/^/  /'
    printf '%s\n' "$all" | while read -r crate version _; do
        texts "$crate" "${version#v}" | while read -r file; do
            printf '%s %s\n' "$(cksum <"$file" | tr ' ' -)" "$file"
        done
    done | sort -s -k1,1 | awk '
        $1 != last { if (NR > 1) print of " " shown; of = ""; last = $1; shown = $2 }
        { n = split($2, p, "/"); of = of (of == "" ? "" : ",") p[n - 1] }
        END { print of " " shown }' | sort | while read -r crates file; do
        printf '\n%s\n%s\n\n' "-------- $crates" "$(cat "$file")"
    done
}

sbom mnn-kv library libmnnkv
sbom mnn-kv-model library libmnnkv_model
sbom mnn-kv-llama library libmnnkv_llama
sbom mnnkv-cli application mnnkv
licences >"$out/mnnkv.txt"
