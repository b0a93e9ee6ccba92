//! The macros that tell a program which version of a header it was compiled with. The tests `header` of palimpsest-capi
//! and palimpsest-paging-capi share it.

/// Returns the macros, named `PREFIX_VERSION…`, for the version of a crate.
pub(crate) fn macros(prefix: &str, version: &str) -> String {
    let parts: Vec<u8> = version.split('.').map(|part| part.parse().expect("a number below 256")).collect();
    let [major, minor, patch] = parts[..] else { panic!("{version} does not have three parts") };
    let function = prefix.to_lowercase();
    format!(
        "\n// The version of this header. {function}_version() tells the library's.\n#define {prefix}_VERSION_MAJOR \
         {major}\n#define {prefix}_VERSION_MINOR {minor}\n#define {prefix}_VERSION_PATCH {patch}\n// As \
         {function}_version() returns it.\n#define {prefix}_VERSION {:#08x}u",
        u32::from(major) << 16 | u32::from(minor) << 8 | u32::from(patch)
    )
}

#[test]
fn each_part_has_a_byte() {
    let made = macros("A_B", "1.20.3");
    for line in ["_MAJOR 1", "_MINOR 20", "_PATCH 3", " 0x011403u"] {
        assert!(made.lines().any(|made| made == format!("#define A_B_VERSION{line}")), "{made}");
    }
    assert!(made.contains("a_b_version()"), "{made}");
}
