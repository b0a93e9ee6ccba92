//! The files in `golden`.

const PACKETS: &[u8] = include_bytes!("golden/packets.pcap");
const FILTERS: &str = include_str!("golden/filters.txt");
const RANDOM: &str = include_str!("golden/random.txt");

/// A packet of the capture.
pub(crate) struct Packet {
    /// What was captured of it.
    pub(crate) bytes: Vec<u8>,
    /// How long it was.
    pub(crate) wire: u32,
}

/// The packets, in their order.
pub(crate) fn packets() -> Vec<Packet> {
    let number = |at: usize| u32::from_le_bytes(PACKETS[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(number(0), 0xa1b2_c3d4, "written by a machine of the other byte order");
    let mut packets = Vec::new();
    let mut at = 24;
    while at < PACKETS.len() {
        let (len, wire) = (number(at + 8) as usize, number(at + 12));
        packets.push(Packet { bytes: PACKETS[at + 16..][..len].to_vec(), wire });
        at += 16 + len;
    }
    packets
}

/// Names, instructions, and which of the packets are taken.
pub(crate) fn filters() -> Vec<(&'static str, &'static str, Vec<bool>)> {
    let of = |part: &'static str| {
        let (name, rest) = part.split_once('\n').expect("a name in a line");
        let (text, taken) = rest.split_once("= ").expect("what is taken");
        (name, text, taken.trim().chars().map(|digit| digit == '1').collect())
    };
    FILTERS.split("\n> ").skip(1).map(of).collect()
}

/// Numbers of packets, and instructions with what they return for these.
pub(crate) fn random() -> (Vec<usize>, Vec<(&'static str, Vec<u64>)>) {
    let mut parts = RANDOM.split("\n\n");
    let numbers = parts.next().and_then(|head| head.lines().last()).expect("a head").trim_start_matches('#');
    let of = |part: &'static str| {
        let (text, results) = part.split_once("= ").expect("results");
        (text, results.split_whitespace().map(|number| number.parse().expect("a number")).collect())
    };
    let numbers = numbers.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    (numbers, parts.map(of).collect())
}
