# Finds where the lines of a patch go, in any version of an engine that has the same lines around. check.sh runs it.
#
#   LC_ALL=C awk -v root=CHECKOUT [-v write=1] [-v renew=1] -f patches.awk PATCH
#
# A patch has no line of the engine. For each hunk it has two hashes: of the lines above the place, and of those below. They reach
# to the second line with a letter or a digit; blank lines, and spaces at the ends of lines, do not count. A hunk fits where both
# hashes do, if that is one place of the file, and goes before blank lines there. Another line "@@" with hashes is the same place
# in another version.
#
# Prints "fits" or "applied", or else a line for each hunk in the way, and fails then. write: where all hunks of all files fit, also
# writes each file with them beside it, as FILE.patched, and prints their names. renew: prints the patch with the hashes of a
# checkout that has its lines, inserted by hand.

function hash(text, i, h) {
    for (i = 1; i <= length(text); i++) h = (h * 257 + ord[substr(text, i, 1)]) % 2147483629
    return h + 0
}

# The hash of the lines from `line` on, in steps of 1 or -1.
function around(line, step, h, words) {
    for (; line >= 1 && line <= count && words < 2; line += step) {
        if (code[line] == "") continue
        h = (h * 65599 + code[line]) % 2147483629
        words += has_word[line]
    }
    return sprintf("%08x", h)
}

# Reads a file without the hunks' own lines: `text`, 1 to `count`, and `had`, after which line a hunk stood.
function read(path, n, i, k, j, line, all) {
    for (n = 0; (getline line < path) > 0; ) all[++n] = line
    close(path)
    count = 0
    for (i = 1; i <= n; ) {
        for (k = first; k < next_hunk; k++) {
            if (k in had) continue
            for (j = 0; j < size[k] && all[i + j] == insert[k, j + 1]; j++);
            if (j == size[k]) break
        }
        if (k < next_hunk) {
            for (had[k] = count; had[k] > 0 && code[had[k]] == ""; had[k]--);
            i += size[k]
            continue
        }
        text[++count] = line = all[i++]
        gsub(/^[ \t]+|[ \t\r]+$/, "", line)
        code[count] = line == "" ? "" : hash(line)
        has_word[count] = line ~ /[A-Za-z0-9]/
    }
    return n > 0
}

# The only place of a hunk; -1 none, -2 several.
function place_of(k, p, found) {
    found = -1
    for (p = 0; p <= count; p++) {
        if ((p == 0 || code[p] != "") && index(places[k], " " above[p] "/" below[p])) {
            if (found >= 0) return -2
            found = p
        }
    }
    return found
}

function tell(why) {
    problems = problems "    " file ": " why "\n"
}

# Judges the hunks of a file, from `first` to before `next_hunk`.
function judge(k, p, i, at, how, target) {
    target = root "/" file
    if (file == "" || first == next_hunk) return
    if (!read(target)) {
        tell("is missing")
        return
    }
    for (p = 0; p <= count; p++) {
        above[p] = around(p, -1)
        below[p] = around(p + 1, 1)
    }
    for (k = first; k < next_hunk; k++) {
        if (renew) {
            if (k in had) places[k] = " " above[had[k]] "/" below[had[k]]
            else tell("does not have the lines of hunk " k - first + 1)
            continue
        }
        at[k] = place_of(k)
        how = at[k] == -1 ? "others" : "in several places"
        if (at[k] < 0) tell("the lines around hunk " k - first + 1 " are " how " in this version")
        else if (!(k in had)) open++
        else if (had[k] == at[k]) applied++
        else tell("has hunk " k - first + 1 " in another place")
    }
    if (write && problems == "") {
        printf "" >(target ".patched")
        for (p = 0; p <= count; p++) {
            if (p > 0) print text[p] >(target ".patched")
            for (k = first; k < next_hunk; k++) {
                if (at[k] != p) continue
                for (i = 1; i <= size[k]; i++) print insert[k, i] >(target ".patched")
            }
        }
        if (close(target ".patched") != 0) tell("cannot be written")
        written = written target "\n"
    }
}

BEGIN {
    for (i = 1; i < 256; i++) ord[sprintf("%c", i)] = i
    first = next_hunk = 1
}
/^\+\+\+ / { judge(); file = substr($2, 3); first = next_hunk; in_places = 0 }
/^@@ / {
    if (!in_places) size[next_hunk++] = 0
    in_places = 1
    places[next_hunk - 1] = places[next_hunk - 1] " " $2 "/" $3
}
/^\+/ && !/^\+\+\+ / { in_places = 0; insert[next_hunk - 1, ++size[next_hunk - 1]] = substr($0, 2) }
{ source[NR] = $0 }
END {
    judge()
    if (problems == "" && open > 0 && applied > 0) {
        problems = "    " applied " of " open + applied " hunks are in already: undo them with git checkout\n"
    }
    if (problems != "") {
        printf "%s", problems
        exit 1
    }
    if (!renew) {
        print (applied > 0 ? "applied" : "fits")
        printf "%s", written
        exit 0
    }
    for (i = k = 1; i <= NR; i++) {
        if (source[i] !~ /^@@ /) print source[i]
        else if (source[i - 1] !~ /^@@ /) {
            split(places[k++], hashes, /[ \/]/)
            print "@@ " hashes[2] " " hashes[3] " @@"
        }
    }
}
