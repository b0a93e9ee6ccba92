//! Packet filters: takes programs as `tcpdump -dd` prints them, and runs them over a capture as verified, compiled
//! eBPF.
//!
//! If tcpdump is installed, it compiles the filters, and its own interpreter says which packets of the same file they
//! take. Otherwise two filters with these results are kept here.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::Command;

use palimpsest_bpf::classic::{Filter, Packets, contract};
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::{Code, Packs, VerifiedProgram};

/// 31 packets: TCP, UDP, ICMP, IPv6 with extension headers, VLANs, MPLS, fragments, and some that were cut off.
const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/bpf/tests/classic/golden/packets.pcap");

/// Filters that are tried if there is a tcpdump.
const FILTERS: [&str; 8] = [
    "tcp port 80",
    "udp and not port 53",
    "icmp[icmptype] = icmp-echo",
    "vlan 100 and tcp port 80",
    "ip6 protochain 6",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "ip[6:2] & 0x1fff != 0",
    "len > 50 and len <= 200",
];

/// Filters as tcpdump 4.99.3 compiled them, and the packets of the file that it takes.
const KEPT: [(&str, &str, &[usize]); 2] = [
    ("arp", "4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n", &[11]),
    ("ip[8] < 5", "6\n40 0 0 12\n21 0 3 2048\n48 0 0 22\n53 1 0 5\n6 0 0 262144\n6 0 0 0\n", &[21]),
];

/// A packet of a capture file.
struct Captured<'a> {
    bytes: &'a [u8],
    /// Its length on the wire.
    wire: u32,
}

/// Returns the packets of a file of libpcap, in this machine's byte order or the other one.
fn packets(file: &[u8]) -> Result<Vec<Captured<'_>>, Box<dyn Error>> {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let turned = match file.first_chunk::<4>().map(|magic| u32::from_ne_bytes(*magic)) {
        // With microseconds, or with nanoseconds.
        Some(0xa1b2_c3d4 | 0xa1b2_3c4d) => false,
        Some(0xd4c3_b2a1 | 0x4d3c_b2a1) => true,
        _ => return Err("this is no file of libpcap".into()),
    };
    let number = |at: usize| -> Option<u32> {
        let number = u32::from_ne_bytes(*file.get(at..)?.first_chunk()?);
        Some(if turned { number.swap_bytes() } else { number })
    };
    let mut packets = Vec::new();
    let mut at = HEADER;
    while at < file.len() {
        let cut = || format!("the file ends in the packet at {at}");
        let (Some(len), Some(wire)) = (number(at + 8), number(at + 12)) else { return Err(cut().into()) };
        let bytes = file.get(at + RECORD..).and_then(|rest| rest.get(..len as usize)).ok_or_else(cut)?;
        packets.push(Captured { bytes, wire });
        at += RECORD + bytes.len();
    }
    Ok(packets)
}

// ANCHOR: filter
/// Returns the numbers of the packets that a filter takes.
fn taken(packs: &Packs, tcpdump: &str, captured: &[Captured<'_>]) -> Result<Vec<usize>, Box<dyn Error>> {
    let filter = Filter::parse(tcpdump)?;
    let verified = contract().verify(Code::new(&filter.translate())?)?;
    let program = VerifiedProgram::load(packs, &verified, &())?;
    let mut packets = Packets::new();
    let mut taken = Vec::new();
    for (number, packet) in captured.iter().enumerate() {
        if program.run_read_only(packets.context(packet.bytes, packet.wire, None))? != 0 {
            taken.push(number);
        }
    }
    Ok(taken)
}
// ANCHOR_END: filter

/// Returns what tcpdump prints with these arguments; `None` if it is not installed.
fn tcpdump(arguments: &[&str]) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    let output = match Command::new("tcpdump").args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output?,
    };
    if !output.status.success() {
        return Err(format!("tcpdump {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(Some(output.stdout))
}

/// Returns the indices, in `all`, of the packets in `some`; both are in the same order.
fn numbers(all: &[Captured<'_>], some: &[Captured<'_>]) -> Vec<usize> {
    let mut rest = all.iter().enumerate();
    let find = |wanted: &Captured<'_>| rest.find(|(_, packet)| packet.bytes == wanted.bytes).map(|(number, _)| number);
    some.iter().filter_map(find).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    if Target::NATIVE.is_none() {
        println!("skipped: there is no compiler for this machine");
        return Ok(());
    }
    let packs = Packs::new()?;
    let file = std::fs::read(Path::new(CAPTURE))?;
    let captured = packets(&file)?;
    for (filter, compiled, expected) in KEPT {
        let taken = taken(&packs, compiled, &captured)?;
        assert_eq!(taken, expected, "{filter}");
        println!("{filter}: {} of {} packets, as tcpdump 4.99.3 said", taken.len(), captured.len());
    }
    for filter in FILTERS {
        let Some(compiled) = tcpdump(&["-y", "EN10MB", "-s", "262144", "-ddd", filter])? else {
            println!("skipped: tcpdump is not installed, so that no other filter is compiled");
            return Ok(());
        };
        // libpcap's own interpreter filters files.
        let theirs = tcpdump(&["-r", CAPTURE, "-w", "-", filter])?.unwrap_or_default();
        let theirs = packets(&theirs)?;
        let taken = taken(&packs, std::str::from_utf8(&compiled)?, &captured)?;
        assert_eq!(taken, numbers(&captured, &theirs), "{filter}");
        println!("{filter}: {} of {} packets, as libpcap says", taken.len(), captured.len());
    }
    Ok(())
}
