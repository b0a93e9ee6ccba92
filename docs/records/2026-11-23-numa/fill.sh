#!/bin/bash
# fill.sh FOLDER: copies the programs that programs.py compares, as far as they are installed, to FOLDER/plain and
# FOLDER/huge, and makes their inputs. FOLDER is on a file system with large folios (ext4, xfs, btrfs).
set -eu
folder=$1
mkdir -p "$folder/tf"
printf '#include <%s>\n' algorithm map regex string vector iostream functional memory random thread unordered_map \
    >"$folder/big.cc"
cat >>"$folder/big.cc" <<'END'
int main(int count, char **words) {
    std::map<std::string, std::vector<int>> seen;
    for (int at = 0; at < count; at++) seen[words[at]].push_back(at);
    std::regex wanted("a+b|c(d*)e");
    for (auto &[word, places] : seen)
        if (std::regex_match(word, wanted)) std::cout << word << places.size() << "\n";
    std::vector<std::function<int(int)>> all;
    for (int at = 0; at < count; at++) all.push_back([at](int more) { return at + more; });
    std::sort(all.begin(), all.end(), [](auto &one, auto &other) { return one(1) < other(1); });
    return 0;
}
END
printf 'variable "x" {\n  default = 1\n}\n' >"$folder/tf/main.tf"
if command -v clang++ >/dev/null; then clang++ -std=c++17 -E "$folder/big.cc" -o "$folder/big.ii"; fi
if command -v g++ >/dev/null; then g++ -std=c++17 -E "$folder/big.cc" -o "$folder/big.gcc.ii"; fi
for mode in plain huge; do
    mkdir -p "$folder/$mode"/{static,docker,clang,gcc,rust/bin,rust/lib}
    # take NAME PLACE: copies an installed program.
    take() {
        program=$(readlink -f "$(command -v "$1")") && cp "$program" "$folder/$mode/$2/$1" || echo "no $1"
    }
    take terraform static
    take kubectl static
    take docker docker
    take node .
    take clang clang
    if [ -x "$folder/$mode/clang/clang" ]; then
        ldd "$folder/$mode/clang/clang" | awk '/libLLVM|libclang/ { print $3 }' | xargs -r cp -Lt "$folder/$mode/clang"
    fi
    if command -v gcc >/dev/null; then cp "$(gcc -print-prog-name=cc1plus)" "$folder/$mode/gcc/"; fi
    if command -v rustc >/dev/null; then
        root=$(rustc --print sysroot)
        cp "$root/bin/rustc" "$folder/$mode/rust/bin/"
        cp "$root"/lib/*.so "$folder/$mode/rust/lib/"
        ln -sfn "$root/lib/rustlib" "$folder/$mode/rust/lib/rustlib"
    fi
done
sync "$folder"
