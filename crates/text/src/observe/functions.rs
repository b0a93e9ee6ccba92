//! Functions inside a program.

use super::{Loaded, Patched};

/// A function inside a program: observers name it instead of the whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Function {
    /// Bytes from the program's first to the function's.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Its name: any text, also empty.
    pub name: Box<str>,
}

impl<'a> Loaded<'a> {
    /// Returns what tables of symbols list one by one: the functions, or else the program. Functions have no lines
    /// here, since those count from the program. Leaves out functions that are not inside it; if none is, as after a
    /// shrink, the program stands for itself.
    #[cfg(feature = "observe")]
    pub(super) fn symbols(&self) -> impl Iterator<Item = Loaded<'a>> {
        let whole = *self;
        let mut inside = whole
            .functions
            .iter()
            .filter_map(move |function| {
                let code = whole.code.get(function.offset..)?.get(..function.len)?;
                let address = whole.address.offset(function.offset);
                Some(Loaded { name: &function.name, address, code, lines: None, functions: &[], ..whole })
            })
            .peekable();
        let none = inside.peek().is_none();
        inside.chain(none.then_some(Loaded { functions: &[], ..whole }))
    }
}

impl<'a> Patched<'a> {
    /// Returns the program as if it had just been loaded as it is now. Its lines and its unwind tables are not kept.
    #[cfg(feature = "observe")]
    pub(super) fn as_loaded(&self) -> Loaded<'a> {
        let &Patched { name, address, code, functions, .. } = self;
        Loaded { name, address, code, eh_frame: None, lines: None, functions }
    }
}

#[cfg(all(test, feature = "observe"))]
mod tests {
    use super::*;
    use crate::address::CodeAddress;

    fn function(offset: usize, len: usize, name: &str) -> Function {
        Function { offset, len, name: name.into() }
    }

    #[test]
    fn functions_stand_for_the_program_and_those_outside_are_left_out() {
        let whole = Loaded {
            name: "whole",
            address: CodeAddress::new(0x1000),
            code: &[1, 2, 3, 4],
            eh_frame: None,
            lines: None,
            functions: &[],
        };
        let told = |loaded: &Loaded<'_>| -> Vec<_> {
            loaded.symbols().map(|one| (one.name.to_owned(), one.address.get(), one.code.to_vec())).collect()
        };
        assert_eq!(told(&whole), [("whole".to_owned(), 0x1000, vec![1, 2, 3, 4])]);
        let functions = [
            function(0, 1, "one"),
            function(2, 2, "two"),
            function(3, 2, "behind"),
            function(5, 0, "outside"),
            function(usize::MAX, usize::MAX, "far"),
        ];
        let split = Loaded { functions: &functions, ..whole };
        assert_eq!(told(&split), [("one".to_owned(), 0x1000, vec![1]), ("two".to_owned(), 0x1002, vec![3, 4])]);
        // A program that has lost all of them has its own name.
        let lost = Loaded { functions: &functions[2..], ..whole };
        assert_eq!(told(&lost), told(&whole));
    }
}
