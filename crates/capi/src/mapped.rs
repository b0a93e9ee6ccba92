//! What is mapped, as far as the kernel tells.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;

use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::query::next_above;
use palimpsest_sys::pages::vmas::each_mapping;

/// Code that can be read.
const CODE: Permissions = Permissions::READ.union(Permissions::EXECUTE);

/// Returns the first of the `sites` that is not mapped as code that can be read; `None` also where the kernel does not
/// tell, for lack of `/proc`.
pub(crate) fn first_without_code(sites: &[Range<usize>]) -> Option<&Range<usize>> {
    let maps = File::open("/proc/thread-self/maps").ok()?;
    for site in sites {
        let mut at = site.start;
        while at < site.end {
            let found = match next_above(maps.as_fd(), at) {
                Ok(found) if found.start <= at && found.permissions.contains(CODE) => found,
                Ok(_) => return Some(site),
                Err(errno) => match errno.raw_os_error() {
                    // Nothing is mapped there or behind.
                    libc::ENOENT => return Some(site),
                    // Before Linux 6.11.
                    libc::ENOTTY => return first_unlisted(sites),
                    _ => return None,
                },
            };
            at = found.end;
        }
    }
    None
}

/// As [`first_without_code`], by the list of all mappings.
fn first_unlisted(sites: &[Range<usize>]) -> Option<&Range<usize>> {
    let mut covered = vec![0; sites.len()];
    let listed = each_mapping(&mut |mapping, _| {
        if mapping.permissions.contains(CODE) {
            sites.iter().zip(&mut covered).for_each(|(site, covered)| *covered += mapping.overlap(site));
        }
        ControlFlow::Continue(())
    });
    listed.ok()?;
    sites.iter().zip(covered).find(|(site, covered)| *covered < site.len()).map(|(site, _)| site)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    /// Fails on: rights that are not looked at; the part of a site behind its first mapping; holes; the list.
    #[test]
    fn code_is_told_from_data_and_from_nothing() {
        let code = first_without_code as fn(&[Range<usize>]) -> Option<&Range<usize>> as usize;
        let data = (&raw const code).addr();
        let end = {
            let mut end = code;
            let found = each_mapping(&mut |mapping, _| {
                if mapping.range().contains(&end) && mapping.permissions.contains(CODE) {
                    end = mapping.end;
                }
                ControlFlow::Continue(())
            });
            found.expect("/proc");
            end
        };
        for tell in [first_without_code, first_unlisted] {
            assert_eq!(tell(&[]), None);
            assert_eq!(tell(slice::from_ref(&(code..code + 16))), None);
            assert_eq!(tell(slice::from_ref(&(end - 2..end))), None);
            for wrong in [data..data + 1, 8..9, end - 1..end + 1, usize::MAX - 1..usize::MAX] {
                let sites = [code..code + 1, wrong.clone(), 0..1];
                assert_eq!(tell(&sites), Some(&wrong));
            }
        }
    }
}
