/// Goes on at the next multiple of 128 KiB: pieces of text between two such places are worth a mapping.
macro_rules! far {
    () => {
        "b 2f\n.balign 131072\n2:"
    };
}
pub(crate) use far;
