//! The types as a C header.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;

use super::types::{Field, Form, Number, Type, Types};

impl Types {
    /// Writes the types as a header for clang, which checks that it puts each member where it is here. Unless
    /// `BPF_NO_PRESERVE_ACCESS_INDEX` is defined, clang also notes accesses, so that a program can be adapted to a host
    /// whose types differ ([`Object::parse_for`](crate::elf::Object::parse_for)). The include guard's name is made of
    /// `name`.
    pub fn header(&self, name: &str) -> String {
        let guard: String =
            name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
        let guard = format!("PALIMPSEST_{}_H", guard.to_ascii_uppercase());
        let mut out =
            format!("/* Made by palimpsest-bpf of the types of a host. */\n#ifndef {guard}\n#define {guard}\n\n");
        let noted = |out: &mut String, what: &str| {
            out.push_str("#ifndef BPF_NO_PRESERVE_ACCESS_INDEX\n");
            out.push_str(what);
            out.push_str("\n#endif\n\n");
        };
        noted(&mut out, "#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)");
        for found in self.all() {
            if let Form::Struct { name, .. } = found.form {
                // Writing to a string does not fail.
                let _ = writeln!(out, "struct {name};");
            }
        }
        out.push('\n');
        let mut defined = BTreeSet::new();
        for number in (1..).map(Number).take(self.all().len()) {
            self.define(number, &mut defined, &mut out);
        }
        noted(&mut out, "#pragma clang attribute pop");
        out.push_str("#endif\n");
        out
    }

    /// Writes a structure's definition, after those of the structures that it contains.
    fn define(&self, number: Number, defined: &mut BTreeSet<Number>, out: &mut String) {
        let found = self.get(number);
        let Form::Struct { name, fields } = &found.form else {
            if let Form::Array { of, .. } = found.form {
                self.define(of, defined, out);
            }
            return;
        };
        if !defined.insert(number) {
            return;
        }
        for field in fields {
            self.define(field.of, defined, out);
        }
        self.write_structure(name, found, fields, out);
    }

    fn write_structure(&self, name: &str, found: &Type, fields: &[Field], out: &mut String) {
        let natural = fields.iter().map(|field| self.get(field.of).align).max().unwrap_or(1);
        let is_packed = found.align < natural;
        let align_of = |field: &Field| if is_packed { 1 } else { self.get(field.of).align };
        let _ = writeln!(out, "struct {name} {{");
        let mut end = 0_usize;
        let pad = |out: &mut String, from: usize, to: usize| {
            if to > from {
                let _ = writeln!(out, "\tunsigned char pad_{from}[{}];", to - from);
            }
        };
        for field in fields {
            if end.next_multiple_of(align_of(field)) != field.offset {
                pad(out, end, field.offset);
            }
            let _ = writeln!(out, "\t{};", self.declare(field.of, field.name));
            end = field.offset + self.get(field.of).size;
        }
        if end.next_multiple_of(found.align) != found.size {
            pad(out, end, found.size);
        }
        let attributes = match () {
            () if is_packed => format!(" __attribute__((packed, aligned({})))", found.align),
            () if found.align > natural => format!(" __attribute__((aligned({})))", found.align),
            () => String::new(),
        };
        let _ = writeln!(out, "}}{attributes};");
        let _ = writeln!(out, "_Static_assert(sizeof(struct {name}) == {}, \"struct {name}\");", found.size);
        for Field { name: field, offset, .. } in fields {
            let place = format!("__builtin_offsetof(struct {name}, {field})");
            let _ = writeln!(out, "_Static_assert({place} == {offset}, \"{field} of struct {name}\");");
        }
        out.push('\n');
    }

    /// Writes C's declaration of `name` with this type.
    fn declare(&self, of: Number, name: &str) -> String {
        match &self.get(of).form {
            Form::Integer { name: of, .. } => format!("{of} {name}"),
            Form::Struct { name: of, .. } => format!("struct {of} {name}"),
            Form::Array { of, count } => self.declare(*of, &format!("{name}[{count}]")),
            Form::Pointer(to) => {
                let is_array = matches!(self.get(*to).form, Form::Array { .. });
                let name = if is_array { format!("(*{name})") } else { "*".to_string() + name };
                self.declare(*to, &name)
            }
        }
    }
}
