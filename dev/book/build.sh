#!/usr/bin/env bash
#
# Builds the pages of the repository as a site, and checks its links.
#
#   dev/book/build.sh [FOLDER]     into FOLDER/site, target/book/site if not given
#
# The pages stay where they are, and read as Markdown there. What a forge or rustdoc understands and
# a site does not is rewritten in copies: links to items of the crate lead to its documentation,
# links to sources to the repository.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly OUT=${1:-target/book}
repository=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)

main() {
    rm -rf "$OUT"
    mkdir -p "$OUT/pages"
    cp dev/book/book.toml "$OUT"
    cp dev/book/SUMMARY.md "$OUT/pages"
    local page
    while read -r page; do
        mkdir -p "$OUT/pages/$(dirname "$page")"
        as_page "$page" >"$OUT/pages/$page"
    done < <(pages)
    mdbook build "$OUT"
    check_links
}

pages() {
    sed -n 's/.*](\(.*\.md\)).*/\1/p' dev/book/SUMMARY.md
}

# A page of the site. A block of code without a language is Rust in the manual.
as_page() {
    local page=$1 dir
    dir=$(dirname "$page")
    awk -v manual="$([[ $page == smc/src/manual/* ]] && echo 1)" '
        /^```/ { if (!open && manual && $0 == "```") $0 = "```rust"; open = !open }
        { print }
    ' "$page" | sed -E \
        -e 's!(\]\([^)]*)README\.md!\1index.md!g' \
        -e 's!\]\(crate::manual::([a-z_]+)(#[^)]*)?\)!](\1.md\2)!g' \
        -e 's!\]\((mod@)?crate::([^)]*::)?([A-Za-z_]+)\)!](https://docs.rs/smc/latest/smc/?search=\3)!g' |
        while IFS= read -r line; do
            sources_as_urls "$dir" "$line"
        done
}

# A line in which links to what is no page lead to the repository.
sources_as_urls() {
    local dir=$1 line=$2 link path
    if [[ $line != *"]("* ]]; then
        printf '%s\n' "$line"
        return
    fi
    while read -r link; do
        path=${link%%#*}
        [[ -n $path && $path != *:* ]] || continue
        path=$(realpath -m --relative-to=. "$dir/$path")
        path=${path/%index.md/README.md}
        if [[ -e $path ]] && ! pages | grep -qxF "$path"; then
            line=${line//]($link)/]($repository/blob/main/$path)}
        fi
    done < <(grep -oE '\]\([^)]+\)' <<<"$line" | sed 's/^](//; s/)$//')
    printf '%s\n' "$line"
}

# Whether each link within the site has its page, and each heading that is linked is there.
check_links() {
    local failed=0 file link path heading target
    while IFS=: read -r file link; do
        link=${link#href=\"}
        [[ $link != *:* && $link != \#* ]] || continue
        path=${link%%#*} heading=
        [[ $link != *#* ]] || heading=${link#*#}
        target=$(realpath -m "$(dirname "$file")/${path%%\?*}")
        if [[ ! -e $target ]]; then
            echo "$file: no page $link"
            failed=1
        elif [[ -n $heading ]] && ! grep -qF "id=\"$heading\"" "$target"; then
            echo "$file: no heading $link"
            failed=1
        fi
    done < <(find "$OUT/site" -name '*.html' ! -name print.html ! -name toc.html ! -name 404.html \
        -exec grep -HoE 'href="[^"]+' {} + | sort -u)
    return "$failed"
}

main
