#!/usr/bin/env bash
#
# Builds the pages of docs/SUMMARY.md as a site with mdbook, and checks that all links within it lead
# somewhere.
#
#   dev/book/site.sh    the site begins at target/book/index.html
#
# The pages stay where they are: mdbook gets copies in the same folders, with other links where a site
# needs them.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly BOOK=${CARGO_TARGET_DIR:-target}/book
readonly SUMMARY=docs/SUMMARY.md
readonly MANUAL=smc/src/manual

main() {
    local repository page title unlisted
    repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
    rm -rf "$BOOK" "$BOOK.source"
    mkdir -p "$BOOK.source/src"
    cp docs/book.toml "$BOOK.source"

    adapt "$SUMMARY" "$repository" >"$BOOK.source/src/SUMMARY.md"
    while read -r page title; do
        mkdir -p "$BOOK.source/src/$(dirname "$page")"
        adapt "$page" "$repository" >"$BOOK.source/src/$page"
    done < <(pages)
    unlisted=$(LC_ALL=C comm -13 <(pages | cut -d ' ' -f 1 | LC_ALL=C sort) \
        <(files | grep -E "^(docs|$MANUAL)/.*\.md$" | grep -vx "$SUMMARY"))
    if [[ -n $unlisted ]]; then
        printf '%s does not list:\n%s\n' "$SUMMARY" "$unlisted"
        return 1
    fi

    MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL=$repository MDBOOK_LOG=warn \
        mdbook build --dest-dir "$(realpath -m "$BOOK")" "$BOOK.source"
    links_lead_somewhere
    echo "$(pages | wc -l) pages: $BOOK/index.html"
}

# Pages of the book, as paths from the root of the project, and their titles.
pages() {
    sed -nE 's/^[^[]*\[([^]]*)\]\((.*)\)$/docs\/\2 \1/p' "$SUMMARY" | sed -E 's/^docs\/\.\.\///'
}

files() {
    {
        git ls-files -co --exclude-standard 2>/dev/null ||
            find . -name target -prune -o -type f -printf '%P\n'
    } | LC_ALL=C sort
}

# PAGE REPOSITORY: the page with links as the site needs them.
#   `crate::manual::CHAPTER`  the page of the chapter
#   `crate::ITEM`             the documentation of the crate
#   a file that is no page    the file in the repository
# A chapter of the manual gets its title, which rustdoc takes from the module.
adapt() {
    awk -v page="$1" -v repository="$2" -v summary="$SUMMARY" -v manual="$MANUAL/" '
        # A path without "." and "..".
        function normal(path,    parts, count, kept, i, result) {
            count = split(path, parts, "/")
            kept = 0
            for (i = 1; i <= count; i++) {
                if (parts[i] == "..") kept--
                else if (parts[i] != "." && parts[i] != "") parts[++kept] = parts[i]
            }
            for (i = 1; i <= kept; i++) result = result (i > 1 ? "/" : "") parts[i]
            return result
        }
        function adapted(link,    path, fragment) {
            sub(/^mod@/, "", link)
            if (sub(/^crate::manual::/, "", link)) {
                fragment = index(link, "#") ? substr(link, index(link, "#")) : ""
                sub(/#.*/, "", link)
                return link ".md" fragment
            }
            if (link ~ /^crate::/) {
                sub(/^crate/, "smc", link)
                return "https://docs.rs/smc/latest/smc/?search=" link "&go_to_first=true"
            }
            if (link ~ /^([a-z]+:|#)/) return link
            path = link
            sub(/#.*/, "", path)
            path = normal(folder "/" path)
            if (page == summary) return path
            if (path in title_of || !(path in is_file)) return link
            if (path "/README.md" in title_of) return link "/README.md"
            return repository "/blob/HEAD/" path
        }
        # Links whose target stands behind `before`.
        function adapt_links(line, before,    result, at, end) {
            while (at = index(line, before)) {
                result = result substr(line, 1, at + length(before) - 1)
                line = substr(line, at + length(before))
                end = match(line, /[) ]|$/)
                result = result adapted(substr(line, 1, end - 1))
                line = substr(line, end)
            }
            return result line
        }
        BEGIN {
            folder = page
            if (!sub(/\/[^\/]*$/, "", folder)) folder = ""
        }
        FILENAME != page {
            if (/ /) title_of[$1] = substr($0, length($1) + 2)
            # Folders as well.
            else for (path = $0; path != ""; sub(/\/?[^\/]*$/, "", path)) is_file[path]
            next
        }
        FNR == 1 && index(page, manual) == 1 { deeper = "#"; print "# " title_of[page] "\n" }
        /^ *```/ { fenced = !fenced }
        !fenced {
            if (/^#+ /) $0 = deeper $0
            $0 = adapt_links($0, "](")
            if (/^\[[^]]*\]: /) $0 = adapt_links($0, "]: ")
        }
        { print }
    ' <(files) <(pages) "$1"
}

# Whether each file of the site, and each heading of a page, to which a page links exists.
links_lead_somewhere() {
    local broken
    broken=$(cd "$BOOK" && LC_ALL=C comm -13 <({
        find . -type f
        grep -roE --include='*.html' ' id="[^"]*"' . | sed -E 's/: id="([^"]*)"/#\1/'
    } | sed 's/^\.\///' | LC_ALL=C sort -u) <(
        grep -roE --include='*.html' 'href="[^"]*"' . | sed -E 's/^\.\///; s/:href="(.*)"/ \1/' |
            awk '$2 !~ /^[a-z]+:/ {
                path = $2 ~ /^#/ ? $1 $2 : $1 "/../" $2
                while (sub(/[^\/]+\/\.\.\//, "", path)) {}
                print path
            }' | LC_ALL=C sort -u))
    [[ -z $broken ]] && return 0
    printf 'links to pages, headings or files that the site does not have:\n%s\n' "$broken"
    return 1
}

main "$@"
