//! What the number of a user or group means in a user namespace.
//!
//! A namespace has numbers for some users of the machine. All others appear under one number (`from_kuid_munged` in
//! `kernel/user.c`, `kernel.overflowuid`), which may also be a known user's. So a user with that number may be anybody,
//! and two such users need not be the same.
//!
//! Format of the maps: `user_namespaces(7)`, "User and group ID mappings".

use super::{ParseError, number, read_with};

/// Who a number means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// One user, or group.
    Known,
    /// A user whom this namespace does not know.
    Unknown,
    /// A known user, or one whom this namespace does not know.
    Either,
}

/// The numbers of users, or of groups, as this process sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    overflow: u32,
    of_overflow: Meaning,
}

/// The kernel's default (`DEFAULT_OVERFLOWUID`).
const OVERFLOW: u32 = 65_534;

impl Numbers {
    /// Reads the numbers of users.
    pub fn of_users() -> Self {
        Self::read("/proc/self/uid_map", "/proc/sys/kernel/overflowuid")
    }

    /// Reads the numbers of groups.
    pub fn of_groups() -> Self {
        Self::read("/proc/self/gid_map", "/proc/sys/kernel/overflowgid")
    }

    /// Returns who `number` means.
    pub fn meaning(self, number: u32) -> Meaning {
        if number == self.overflow { self.of_overflow } else { Meaning::Known }
    }

    /// Returns whether `number` means exactly one user or group.
    pub fn is_known(self, number: u32) -> bool {
        self.meaning(number) == Meaning::Known
    }

    /// Reads the files. Without `/proc` assumes the worst.
    fn read(map: &str, overflow: &str) -> Self {
        let value = |text: &[u8]| {
            let value = number(text.trim_ascii(), 10).and_then(|value| u32::try_from(value).ok());
            value.ok_or_else(|| ParseError::new(1, text, "number"))
        };
        let overflow = read_with(overflow, value).unwrap_or(OVERFLOW);
        let of_overflow = read_with(map, |text| meaning(text, overflow)).unwrap_or(Meaning::Either);
        Self { overflow, of_overflow }
    }
}

/// The count of all numbers; -1 is not one.
const ALL: u64 = u32::MAX as u64;

/// Returns what `overflow` means according to the text of a map. Its lines are the first number inside, the first
/// outside, and the count.
fn meaning(map: &[u8], overflow: u32) -> Result<Meaning, ParseError> {
    let (mut known, mut has_overflow) = (0_u64, false);
    for (index, line) in map.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty())
    {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut next = || words.next().and_then(|word| number(word, 10));
        let (Some(inside), Some(_outside), Some(count)) = (next(), next(), next()) else {
            return Err(ParseError::new(index + 1, line, "three numbers"));
        };
        known = known.saturating_add(count);
        has_overflow |= (inside..inside.saturating_add(count)).contains(&u64::from(overflow));
    }
    Ok(match (known >= ALL, has_overflow) {
        (true, _) => Meaning::Known,
        (false, true) => Meaning::Either,
        (false, false) => Meaning::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_for_all_others_means_nobody_where_others_are_not_known() {
        let of = |map: &str| meaning(map.as_bytes(), 65_534).ok();
        assert_eq!(of("         0          0 4294967295\n"), Some(Meaning::Known));
        assert_eq!(of("0 1000 1\n"), Some(Meaning::Unknown), "unshare --map-root-user");
        assert_eq!(of(""), Some(Meaning::Unknown), "unshare --user");
        assert_eq!(of("0 1000 1\n1 100000 65536\n"), Some(Meaning::Either), "a container without root");
        assert_eq!(of("0 0 1\n1000 1000 1\n"), Some(Meaning::Unknown), "PrivateUsers=");
        assert_eq!(of("0 1000\n"), None);
        assert_eq!(of("0 x 1\n"), None);
        assert_eq!(of("18446744073709551615 0 18446744073709551615\n"), Some(Meaning::Known));
    }

    #[test]
    fn other_numbers_are_whose_they_seem() {
        for of_overflow in [Meaning::Known, Meaning::Unknown, Meaning::Either] {
            let numbers = Numbers { overflow: 65_534, of_overflow };
            assert_eq!((numbers.meaning(0), numbers.meaning(65_534)), (Meaning::Known, of_overflow));
        }
        assert_eq!(Numbers::read("/nonexistent", "/nonexistent").meaning(OVERFLOW), Meaning::Either);
    }
}
